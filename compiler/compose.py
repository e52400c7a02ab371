"""The child process that lets Hydra compose a config, as upstream's own `@hydra.main` does.

Reads one request from standard input and writes one answer to standard output, both JSON:
    {"tree": folder, "config_name": name, "overrides": [text, ...]}
    {"leaves": {field: value}, "interpolations": {field: text}, "faults": [{"override", "field", "reason"}]}
A leaf is a scalar, a whole list or an empty mapping. Overrides are counted from 0. A faulty override is left
out and the rest composed again, so that every fault is found at once. Nothing is written anywhere.
"""

import gc
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from miniverl.compiler.leaf import flat

# Hydra raises a bare ValueError where a config group gets a number, asserts that a group has a name, and follows
# a list into a list as deep as Python lets it.
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    AssertionError,
    RecursionError,
)
ADVICE = re.compile(
    r"^(To append|Either remove|Or add|See https|Config search path|\d\. |\tprovider)"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`override` is its number, None where no single override is at fault; `field` may be empty."""

    override: int | None
    field: str
    reason: str


def main() -> None:
    gc.disable()  # the process is short, and a fifth of its time would go into looking for cycles
    if yaml.__with_libyaml__:
        # OmegaConf derives its loader from this class at each load: same rules, a third of the time.
        yaml.SafeLoader = yaml.CSafeLoader
    request = json.load(sys.stdin)
    os.environ.clear()  # ${oc.env:NAME} finds nothing, not even what started this process
    faults: list[Fault] = []
    answer: dict[str, Any] = {"leaves": {}, "interpolations": {}}
    with initialize_config_dir(request["tree"], version_base=None):
        config = _composed(request["config_name"], request["overrides"], faults)
        if config is not None:
            answer = {
                "leaves": _resolved(config, faults),
                "interpolations": _interpolations(config),
            }
    json.dump({**answer, "faults": [asdict(fault) for fault in faults]}, sys.stdout)


def _composed(name: str, overrides: Sequence[str], faults: list[Fault]) -> DictConfig | None:
    """The composed config without the overrides that Hydra refuses; None when it refuses the config itself."""
    try:
        return compose(name, overrides=list(overrides))
    except COMPOSITION_ERRORS:
        good = dict(_parsed(overrides, faults))
    while True:
        try:
            return compose(name, overrides=list(good.values()))
        except COMPOSITION_ERRORS as error:
            number = _culprit(name, good, str(error)) if good else None
            field = "" if number is None else key_of(overrides[number])
            faults.append(Fault(number, field, condensed(error)))
            if number is None:
                return None
            del good[number]


def _parsed(overrides: Sequence[str], faults: list[Fault]) -> Iterator[tuple[int, str]]:
    """The overrides that follow the grammar and stand for one value."""
    parser = OverridesParser.create()
    for number, text in enumerate(overrides):
        if not key_of(text):
            faults.append(Fault(number, "", "it names no field"))
            continue
        try:
            sweeps = parser.parse_override(text).is_sweep_override()
        except (HydraException, RecursionError) as error:
            faults.append(Fault(number, key_of(text), condensed(error)))
            continue
        if sweeps:
            faults.append(Fault(number, key_of(text), "a sweep stands for several launches"))
        else:
            yield number, text


def _culprit(name: str, good: Mapping[int, str], message: str) -> int | None:
    """The override that the message names; else the one without which the message does not appear."""
    named = [number for number, text in good.items() if _names(message, text)]
    if len(named) == 1:
        return named[0]
    numbers = list(good)
    composes, fails = -1, len(numbers)
    while fails - composes > 1:
        middle = (composes + fails) // 2
        if _refusal(name, [good[number] for number in numbers[:middle]]) == message:
            fails = middle
        else:
            composes = middle
    return numbers[fails - 1] if fails else None


def _names(message: str, override: str) -> bool:
    with_package = override.lstrip("+~").partition("=")[0].strip()
    return f"'{key_of(override)}'" in message or f"'{with_package}'" in message


def _refusal(name: str, overrides: list[str]) -> str:
    try:
        compose(name, overrides=overrides)
    except COMPOSITION_ERRORS as error:
        return str(error)
    return ""


def key_of(override: str) -> str:
    """`a.b` of `++a.b=1`, `~a.b`, `a.b@c=1`."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].strip()


def condensed(error: Exception) -> str:
    """Hydra's message in one line, without its advice and its search path."""
    lines = [line.strip() for line in str(error).splitlines() if not ADVICE.match(line)]
    return " ".join(line for line in lines if line).rstrip(".")


def _resolved(config: DictConfig, faults: list[Fault]) -> dict[str, Any]:
    """Every leaf with its interpolations resolved."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:
        plain = OmegaConf.to_container(config, resolve=False)
        faults.extend(_unresolved(config, plain))
    leaves = dict(flat(plain))
    endless = (field for field, value in leaves.items() if _has_nan(value))
    faults.extend(Fault(None, field, "not a finite number") for field in endless)
    return leaves


def _unresolved(config: DictConfig, plain: Any) -> Iterator[Fault]:
    for field, text in flat(plain):
        if "${" in str(text):
            try:
                node = OmegaConf.select(config, field)
                if OmegaConf.is_config(node):
                    OmegaConf.to_container(node, resolve=True)
            except OmegaConfBaseException as error:
                reason = str(error).partition("\n")[0]
                yield Fault(None, field, f"{text} does not resolve: {reason}")


def _interpolations(config: DictConfig) -> dict[str, str]:
    """The leaves that upstream's tree, or an override, takes from elsewhere."""
    plain = OmegaConf.to_container(config, resolve=False)
    return {field: value for field, value in flat(plain) if "${" in str(value)}


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, float) and not math.isfinite(value)


if __name__ == "__main__":
    main()
