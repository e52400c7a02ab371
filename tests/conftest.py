"""What holds for every test."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _heeds_ctrl_c() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would be tested on deaf ones."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
