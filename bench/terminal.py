"""Tables on stderr, as wide as the terminal, and wide enough where there is none."""

from rich.console import Console, RenderableType

_WITHOUT_A_TERMINAL_COLUMNS = 120


def draw(table: RenderableType) -> None:
    console = Console(stderr=True)
    width = None if console.is_terminal else _WITHOUT_A_TERMINAL_COLUMNS
    console.print(table, width=width, soft_wrap=False)
