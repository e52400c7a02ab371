"""NVIDIA's management library, asked one question at a time: the answer is a value, or why there is none.

No library is a normal state: most machines have no such card. A question that this card, driver or user
cannot have answered never ends the run, and never turns into 0.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


class Status(StrEnum):
    """Why there is no value, in the words of a record."""

    NOT_SUPPORTED = "not_supported"  # this card does not tell
    NO_PERMISSION = "no_permission"  # it does not tell this user
    FUNCTION_NOT_FOUND = "function_not_found"  # the driver is older than the question
    BINDING_MISSING = "binding_missing"  # the installed nvidia-ml-py is
    DEVICE_LOST = "device_lost"  # the card has fallen off the bus, or needs a reset
    NOT_MEASURED = "not_measured"  # it tells, and did not this time


_STATUSES: dict[int, Status] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Status.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Status.FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Status.FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION: Status.NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST: Status.DEVICE_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Status.DEVICE_LOST,
}


@contextmanager
def opened() -> Iterator[str | None]:
    """The library is open inside the block; yields None, or the sentence why it is not."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield _why_closed(error)
        return
    try:
        yield None
    finally:
        pynvml.nvmlShutdown()


def ask(question: Callable[[], T | None]) -> T | Status:
    """The answer, or why there is none. The bindings answer None where the driver hides a number."""
    try:
        answer = question()
    except pynvml.NVMLError as error:
        return _STATUSES.get(error.value, Status.NOT_MEASURED)
    return Status.NOT_SUPPORTED if answer is None else answer


def call(function: str, *arguments: Any) -> Any:
    """What the library's function of that name answers, or the Status that stands in its place."""
    found = getattr(pynvml, function, None)
    return Status.BINDING_MISSING if found is None else ask(partial(found, *arguments))


def scaled(answer: Any, factor: float) -> Any:
    """A number in another unit; a Status as it is."""
    return answer if isinstance(answer, Status) else answer * factor


def _why_closed(error: pynvml.NVMLError) -> str:
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "it finds no NVIDIA driver library"
    return f"the NVIDIA driver does not answer: {error}"
