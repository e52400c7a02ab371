"""The exit table. GNU make turns any failure into its own 2, so the sentence on stderr is what counts there."""

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0  # accepted; measured and exact; improved, same, inconclusive, descriptive; valid
    NO = 1  # rejected or input needed; failed, over contract, resume mismatch; regressed, not comparable
    WRONG_CALL = 2  # our own command line: unknown option, missing file, unknown profile
    CANNOT_HERE = 3  # no such card, stack differs from the lock, does not fit
    INTERRUPTED = 130  # Ctrl-C
