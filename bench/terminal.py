"""Tables on stderr, as wide as the terminal, and wide enough where there is none."""

from rich.console import Console, RenderableType

_WITHOUT_A_TERMINAL_COLUMNS = 120


def draw(table: RenderableType) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=_WITHOUT_A_TERMINAL_COLUMNS)
    console.print(table)
