"""A workload: an upstream launch, what is stated on top of it, its inputs, and the contract it runs under.

bench/workloads/*.yaml are the documents; one may say `extends: NAME`, and then states what differs. What a
workload computes is in its digest; titles and reasons are not.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from miniverl.bench import corpus_workload
from miniverl.bench.comparability import sha256_of
from miniverl.bench.document import build, load
from miniverl.bench.pin import DataPin, DerivedPin, HubPin, ModelPin, find, pins
from miniverl.compiler import bound_quantization
from miniverl.compiler import source as sources
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Dtype, Quantization

_STEPS = "trainer.total_training_steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    set: str  # key=value in Hydra's grammar
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadBindings:
    """Names of pins in place of the launch's model and data; rows are written pin/split."""

    model: str
    train: str
    validation: str | None
    reward: str | None  # None where a reward model scores
    compute_dtype: Literal[Dtype, "auto"]  # auto: as bench/precision.py has it for the device
    critic: str | None = None
    reward_model: str | None = None
    teacher: str | None = None
    teachers: Mapping[str, str] | None = None  # in place of one: by the key of their prompts
    quantization: Quantization | None = None  # of the policy's frozen weights
    rollout_weights: Quantization | None = None
    teacher_quantization: Quantization | None = None
    reward_model_quantization: Quantization | None = None

    @property
    def quantised(self) -> dict[str, str]:
        """What is in 4 bits, by the names of compiler/bound_quantization.py."""
        named = {name: getattr(self, name) for name in bound_quantization.LEAVES}
        return {name: held for name, held in named.items() if held is not None}

    @property
    def models(self) -> dict[str, str]:
        """The pin of each model, by the role that it is bound to."""
        others = {"critic": self.critic, "reward_model": self.reward_model, "teacher": self.teacher}
        named = {role: pin for role, pin in others.items() if pin is not None}
        keyed = {f"teacher.{key}": pin for key, pin in (self.teachers or {}).items()}
        return {"model": self.model, **named, **keyed}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """What one launch may use. Reserved memory counts on a GPU, resident memory on a CPU."""

    device_hours: float
    peak_reserved_gib: float
    peak_rss_gib: float
    disk_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    name: str
    version: int
    title: str
    launch: str  # a document in compiler/launches, or hydra:CONFIG for upstream's tree as it is
    overrides: tuple[Override, ...]
    seed: int
    seed_overrides: tuple[str, ...]  # fields that all get the seed
    bindings: WorkloadBindings
    warmup_steps: int
    interrupt_after_update: int | None
    checks_resume: bool
    launches: int
    contract: Contract
    profile: str | None = None  # the compiler's; None: the one for such a launch
    stand_in: str | None = None  # the workload that is measured where the Hub gives no weights

    @property
    def sha256(self) -> str:
        """Digest over everything that decides what is computed and under which limits."""
        plain = asdict(self)
        plain["overrides"] = [override.set for override in self.overrides]
        del plain["title"], plain["stand_in"]
        # What a workload may leave out counts where it is stated, so a new field moves no older digest.
        for kind, stated in ((Workload, plain), (WorkloadBindings, plain["bindings"])):
            for part in fields(kind):
                if part.default is None and stated.get(part.name, "") is None:
                    del stated[part.name]
        return sha256_of(json.loads(json.dumps(plain)))

    @property
    def pins(self) -> tuple[str, ...]:
        """The names of all inputs to fetch, upstream's config tree not among them."""
        rows = {reference.partition("/")[0] for reference in self._rows()}
        return (*dict.fromkeys(self.bindings.models.values()), *sorted(rows))

    @property
    def num_steps(self) -> int:
        return int(self._values()[_STEPS])

    def _rows(self) -> list[str]:
        return [row for row in (self.bindings.train, self.bindings.validation) if row is not None]

    def _values(self) -> dict[str, str]:
        return dict(override.set.split("=", 1) for override in self.overrides)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileArguments:
    """What compiler.lower.compile_launch is called with: overrides on top of the launch's, and bindings."""

    source: str
    profile: str | None
    overrides: tuple[sources.Override, ...]
    bindings: tuple[str, ...]


def names() -> list[str]:
    """Every workload's name, sorted."""
    folder = files("miniverl.bench") / "workloads"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir())


@cache
def workload(name: str) -> Workload:
    """The workload called `name`; raises WrongCall for an unknown name, or with all that is wrong in it."""
    if name.startswith(corpus_workload.PREFIX):
        return parse(corpus_workload.document(name), name)
    known = names()
    if name not in known:
        fix = did_you_mean(name, known, f"Known: {', '.join(known)}")
        raise WrongCall([_problem("workload", name, "command line", "there is none", fix)])
    read = parse(_document(name), f"{name}.yaml")
    assert read.name == name, f"{name}.yaml calls itself {read.name}"
    return read


def _document(name: str) -> dict[str, Any]:
    """The document of that name; one that extends another is told as if it stood alone."""
    plain = load(files("miniverl.bench") / "workloads" / f"{name}.yaml")
    base = plain.pop("extends", None)
    return plain if base is None else extended(_document(base), plain)


def extended(base: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `plain` states in its place: whole values, single bindings, single overrides by field."""
    overrides = {_field(one): one for one in (*base["overrides"], *plain.get("overrides", []))}
    bindings = {**base["bindings"], **plain.get("bindings", {})}
    return {**base, **plain, "overrides": list(overrides.values()), "bindings": bindings}


def _field(override: Mapping[str, str]) -> str:
    return override["set"].partition("=")[0]


def parse(plain: Mapping[str, Any], origin: str) -> Workload:
    """A workload document; raises WrongCall with every problem in it."""
    built = build(Workload, plain, "workload", origin)
    wrong = [*_wrong_overrides(built), *_wrong_bindings(built)]
    if not wrong:  # only then is the number of steps known
        wrong = [*_wrong_numbers(built)]
    if wrong:
        raise WrongCall(
            _problem(field, value, origin, reason, "Correct the document")
            for field, value, reason in wrong
        )
    return built


def require_fit(changed: Workload, origin: str) -> None:
    """Raises WrongCall where the bindings are none that a workload may have."""
    wrong = list(_wrong_bindings(changed))
    if wrong:
        raise WrongCall(
            _problem(field, value, origin, reason, "Bind something else")
            for field, value, reason in wrong
        )


def compile_arguments(
    chosen: Workload, seed: int | None, folders: Mapping[str, Path], auto_dtype: Dtype
) -> CompileArguments:
    """What compiles `chosen`. `folders` is what `fetch(chosen.pins)` returned; no `seed` is the workload's own.

    `auto_dtype` is what is computed in where the workload leaves that to the device.
    """
    value = chosen.seed if seed is None else seed
    stated = [(override.set, "workload") for override in chosen.overrides]
    stated += [(f"{field}={value}", "seed of workload") for field in chosen.seed_overrides]
    bound = chosen.bindings
    validation = "none" if bound.validation is None else _parquet(bound.validation, folders)
    dtype = auto_dtype if bound.compute_dtype == "auto" else bound.compute_dtype
    return CompileArguments(
        source=chosen.launch if ":" in chosen.launch else f"launch:{chosen.launch}",
        profile=chosen.profile,
        overrides=tuple(sources.Override(text, f"{where} {chosen.name}") for text, where in stated),
        bindings=(
            *(f"{role}={folders[pin]}" for role, pin in bound.models.items()),
            f"train={_parquet(bound.train, folders)}",
            f"validation={validation}",
            *([] if bound.reward is None else [f"reward={bound.reward}"]),
            f"compute_dtype={dtype}",
            *(f"{name}={held}" for name, held in bound.quantised.items()),
        ),
    )


def _parquet(rows: str, folders: Mapping[str, Path]) -> Path:
    name, _, split = rows.partition("/")
    return folders[name] / f"{split}.parquet"


Wrong = tuple[str, object, str]


def _wrong_overrides(read: Workload) -> Iterable[Wrong]:
    seen: set[str] = set()
    for index, override in enumerate(read.overrides):
        field, equals, value = override.set.partition("=")
        place = f"workload.overrides.{index}.set"
        if not (field and equals and value) or override.set.split() != [override.set]:
            yield place, override.set, "expected key=value"
        if field in seen or field in read.seed_overrides:
            yield place, override.set, f"{field} is set twice"
        if not override.why.strip():
            yield f"workload.overrides.{index}.why", override.why, "expected a reason"
        seen.add(field)
    if _STEPS not in seen:
        yield (
            "workload.overrides",
            None,
            f"{_STEPS} must be stated: a run of unknown length has no contract",
        )


def _wrong_bindings(read: Workload) -> Iterable[Wrong]:
    for role, pin in read.bindings.models.items():
        chosen = pins().get(pin)
        is_scorer = isinstance(chosen, DerivedPin) and chosen.head_seed is not None
        is_fit = is_scorer == (role == "reward_model") or isinstance(chosen, HubPin)
        if not isinstance(chosen, ModelPin) or not is_fit:
            yield f"workload.bindings.{role}", pin, "there is no such model pin"
    for field, rows in (("train", read.bindings.train), ("validation", read.bindings.validation)):
        if rows is not None:
            name, _, split = rows.partition("/")
            data = find(name)
            if not isinstance(data, DataPin) or split not in data.splits:
                yield f"workload.bindings.{field}", rows, "expected pin/split of a data pin"
    if read.bindings.teacher is not None and read.bindings.teachers is not None:
        yield "workload.bindings.teachers", read.bindings.teachers, "one teacher is bound already"
    if read.bindings.train == read.bindings.validation:
        yield "workload.bindings.validation", read.bindings.validation, "it is the training split"


def _wrong_numbers(read: Workload) -> Iterable[Wrong]:
    steps = read.num_steps
    if not 0 <= read.warmup_steps < steps:
        yield "workload.warmup_steps", read.warmup_steps, f"expected 0 to {steps - 1}"
    if read.launches < 1:
        yield "workload.launches", read.launches, "expected at least 1"
    kill = read.interrupt_after_update
    if read.checks_resume != (kill is not None):
        yield "workload.interrupt_after_update", kill, "stated if and only if checks_resume is true"
    elif kill is not None and not 1 <= kill < steps:
        yield "workload.interrupt_after_update", kill, f"expected 1 to {steps - 1}"
    for name, limit in asdict(read.contract).items():
        if limit <= 0:
            yield f"workload.contract.{name}", limit, "expected a positive number"


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
