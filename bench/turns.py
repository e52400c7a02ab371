"""Taking turns with another measurement: before each launch this one says `ready` and waits for a line.

One side of `miniverl bench --against`, which gives the turns (against.py). The resume check is one turn.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from miniverl.bench.stop import Stop

READY = "ready"
_LOOK_EVERY_SECONDS = 0.2


@contextmanager
def in_turns(asked: Stop) -> Iterator[None]:
    """The block is this side's turn. Whoever asks for the end meanwhile is heard."""
    print(READY, flush=True)
    stdin = sys.stdin.fileno()
    while asked.outcome() is None:
        readable, _, _ = select.select([stdin], [], [], _LOOK_EVERY_SECONDS)
        if readable:
            if not os.read(stdin, 1 << 10):  # nobody is left to give a turn
                asked.note(signal.SIGHUP, None)
            break
    yield
