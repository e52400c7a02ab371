"""The child process that lets Hydra compose a config, as upstream's own `@hydra.main` does.

Reads one request from standard input and writes one answer to standard output, both JSON:
    {"tree": folder, "user_tree": folder or null, "config_name": name, "overrides": [text, ...]}
    {"leaves": {field: value}, "interpolations": {field: text}, "faults": [{"override", "field", "reason"}],
     "read": [file of the user's tree, ...], "searchpath": what the user's config says, or null}
A leaf is a scalar, a whole list or an empty mapping. Overrides are counted from 0. A faulty override is left
out and the rest composed again, so that every fault is found at once. Nothing is written anywhere.
A user's tree is found first and the pinned one behind it, as with `--config-path` and `hydra.searchpath`.
"""

import gc
import json
import math
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import yaml  # type: ignore[import-untyped]
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from miniverl.compiler.bounded import Bounds
from miniverl.compiler.leaf import flat

Compose = Callable[[Sequence[str]], DictConfig]

# Hydra raises a bare ValueError where a config group gets a number, asserts that a group has a name, and follows
# a list into a list as deep as Python lets it. A user's files may be no YAML, or may not be read.
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    AssertionError,
    RecursionError,
    yaml.YAMLError,
    OSError,
)
MOST_BYTES, MOST_SECONDS = 2 * 2**30, 20  # a composition takes a hundredth of them
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
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    tree, user_tree = Path(request["tree"]), request["user_tree"]
    bounds = Bounds(user_tree and Path(user_tree), [tree, Path(hydra.__file__).parent])
    bounds.hold()
    faults: list[Fault] = []
    answer: dict[str, Any] = {"leaves": {}, "interpolations": {}, "searchpath": None}
    with initialize_config_dir(user_tree or str(tree), version_base=None):
        behind = [f"hydra.searchpath=[{_quoted(f'file://{tree}')}]"] if user_tree else []
        compose = partial(_compose, request["config_name"], behind)
        config = _composed(compose, request["overrides"], faults)
        if config is not None:
            answer |= {
                "leaves": _resolved(config, faults),
                "interpolations": _interpolations(config),
            }
    if user_tree:
        folder = Path(user_tree).resolve()
        answer["read"] = [path.relative_to(folder).as_posix() for path in bounds.read]
        answer["searchpath"] = _searchpath(folder / f"{request['config_name']}.yaml")
    json.dump({**answer, "faults": [asdict(fault) for fault in faults]}, sys.stdout)


def _compose(name: str, behind: Sequence[str], overrides: Sequence[str]) -> DictConfig:
    return hydra.compose(name, overrides=[*behind, *overrides])


def _quoted(text: str) -> str:
    """As one word of Hydra's grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _searchpath(primary: Path) -> Any:
    """What the user's config says of other config trees; Hydra hears of it in this file alone."""
    try:
        config = yaml.safe_load(primary.read_text(encoding="utf-8"))
    except COMPOSITION_ERRORS:
        return None  # it did not compose either
    own = config.get("hydra") if isinstance(config, dict) else None
    return own.get("searchpath") if isinstance(own, dict) else None


def _composed(compose: Compose, overrides: Sequence[str], faults: list[Fault]) -> DictConfig | None:
    """The composed config without the overrides that Hydra refuses; None when it refuses the config itself."""
    try:
        return compose(overrides)
    except COMPOSITION_ERRORS:
        good = dict(_parsed(overrides, faults))
    while True:
        try:
            return compose(list(good.values()))
        except COMPOSITION_ERRORS as error:
            number = _culprit(compose, good, str(error)) if good else None
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


def _culprit(compose: Compose, good: Mapping[int, str], message: str) -> int | None:
    """The override that the message names; else the one without which the message does not appear."""
    named = [number for number, text in good.items() if _names(message, text)]
    if len(named) == 1:
        return named[0]
    numbers = list(good)
    composes, fails = -1, len(numbers)
    while fails - composes > 1:
        middle = (composes + fails) // 2
        if _refusal(compose, [good[number] for number in numbers[:middle]]) == message:
            fails = middle
        else:
            composes = middle
    return numbers[fails - 1] if fails else None


def _names(message: str, override: str) -> bool:
    with_package = override.lstrip("+~").partition("=")[0].strip()
    return f"'{key_of(override)}'" in message or f"'{with_package}'" in message


def _refusal(compose: Compose, overrides: list[str]) -> str:
    try:
        compose(overrides)
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
