"""The known name that a mistyped one probably meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The shortest of few names that end in `.name`, else the closest spelling, else None."""
    names = sorted(set(known))
    longer = [one for one in names if one.endswith(f".{name}")]
    if 0 < len(longer) <= 3:
        return min(longer, key=len)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A fix: the nearest name as a question, or `otherwise`."""
    close = nearest(name, known)
    return f"Did you mean {close}?" if close else otherwise
