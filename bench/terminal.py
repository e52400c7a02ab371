"""Tables on stderr, as wide as the terminal, and wide enough where there is none."""

import os

from rich.console import Console, RenderableType

_WITHOUT_A_TERMINAL_COLUMNS = 120


class Terminal(Console):
    """What people read, on stderr."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(stderr=True, width=width)

    def on_broken_pipe(self) -> None:
        """When nobody reads any more, the work goes on; rich would end the process."""
        self.quiet = True

    @property
    def is_live(self) -> bool:
        """Whether what is drawn may be drawn over: not in a log, nor where a CI keeps one."""
        return self.is_terminal and not self.is_dumb_terminal and not os.environ.get("CI")


def draw(table: RenderableType) -> None:
    console = Terminal()
    if not console.is_terminal:
        console = Terminal(width=_WITHOUT_A_TERMINAL_COLUMNS)
    console.print(table)
