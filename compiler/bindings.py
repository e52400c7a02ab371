"""What the user binds a launch to on this machine: model, rows, reward and arithmetic, each by name.

A binding stands in for something that the launch names and this machine does not have, or that upstream
decides outside its config. The recipe gets digests of the content, never a path; each binding is a row of
the report. Defaults of bindings stand here and nowhere else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from miniverl.compiler import bound_quantization, bound_reward
from miniverl.compiler.bound_reward import SCORERS, RewardFunction
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.problem import CannotHere, Problem, WrongCall
from miniverl.engine.recipe import Dtype

DTYPES: tuple[str, ...] = get_args(Dtype)
_TEACHERS = "distillation.teacher_models."
_MEDIA = ("vision_config", "audio_config")  # what a model that sees or hears has in its config.json

# Upstream scores and updates in bfloat16 over float32 weights unless `+fsdp_config.mixed_precision` says
# otherwise (workers/engine/fsdp/transformer_impl.py:372).
UPSTREAM_COMPUTE_DTYPE = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A folder in Hugging Face's layout."""

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """A Parquet file."""

    path: Path
    sha256: str
    count: int
    columns: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bindings:
    """None: not bound. `origins` names where each bound one was written."""

    model: Model | None
    adapter: Model | None
    train: Rows | None
    validation: Rows | None
    without_validation: bool
    reward: str | None
    reward_arguments: Mapping[str, Any]
    reward_function: RewardFunction | None
    critic: Model | None
    reward_model: Model | None
    teachers: Mapping[str | None, Model]  # by the key of their prompts; None takes every prompt
    compute_dtype: str
    quantised: Mapping[str, str]  # by the names in compiler/bound_quantization.py
    origins: Mapping[str, str]

    @property
    def bound(self) -> dict[str, Any]:
        """What is bound, by the names that it is bound under."""
        named = {
            "model": self.model,
            "adapter": self.adapter,
            "train": self.train,
            "reward": self.reward,
            "validation": self.validation,
            "critic": self.critic,
            "reward_model": self.reward_model,
            "reward_function": self.reward_function,
            **{teacher_name(key): model for key, model in self.teachers.items()},
        }
        return {name: value for name, value in named.items() if value is not None}

    def for_rules(self) -> dict[str, Any]:
        """What rules may look at: digests, counts and names."""
        return {
            "model": self.model.sha256 if self.model else None,
            "adapter": self.adapter.sha256 if self.adapter else None,
            "train": self.train.sha256 if self.train else None,
            "train_rows": self.train.count if self.train else None,
            "train_columns": self.train.columns if self.train else frozenset(),
            "validation": self.validation.sha256 if self.validation else None,
            "without_validation": self.without_validation,
            "reward": self.reward,
            "reward_arguments": {**self.reward_arguments},
            "reward_metrics": None if self.reward is None else SCORERS[self.reward].metrics,
            "reward_function": self._function_for_rules(),
            "critic": self.critic.sha256 if self.critic else None,
            "reward_model": self.reward_model.sha256 if self.reward_model else None,
            "teachers": {key: model.sha256 for key, model in self.teachers.items()},
            "compute_dtype": self.compute_dtype,
            "quantised": {**self.quantised},
        }

    def _function_for_rules(self) -> dict[str, str] | None:
        function = self.reward_function
        return None if function is None else {"sha256": function.sha256, "name": function.name}


def teacher_name(key: str | None) -> str:
    """The name that a teacher is bound under: teacher.KEY, where there are several."""
    return "teacher" if key is None else f"teacher.{key}"


def parse(texts: Sequence[str], where: str = "--bind") -> Bindings:
    """The bindings in `name=value` texts; raises WrongCall with every mistake in them.

    Names: model=FOLDER, adapter=FOLDER, train=FILE.parquet, validation=FILE.parquet or none, reward=NAME and reward.ARGUMENT=JSON,
    or reward_function=FILE:NAME and trust_reward_code=SHA256, compute_dtype=NAME, critic=FOLDER,
    reward_model=FOLDER, teacher=FOLDER or teacher.KEY=FOLDER for each of several; and quantization,
    rollout_weights, teacher_quantization and reward_model_quantization, each nf4 or none.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        origin = f"{where} {text}"
        read = _reader(name)
        if read is None or not equals:
            problems.append(_unknown(name, value, origin))
        elif name in origins:
            problems.append(
                _problem(
                    name,
                    value,
                    origin,
                    f"bound twice, first by {origins[name]}",
                    "Keep one of them",
                )
            )
        else:
            origins[name] = origin
            try:
                values[name] = read(value, origin)
            except WrongCall as wrong:
                problems.extend(wrong.problems)
    arguments = {key: value for key, value in _keyed("reward", values).items() if key}
    if not problems:
        problems = _reward_problems(values, arguments, origins)
    if problems:
        raise WrongCall(problems)
    return Bindings(
        model=values.get("model"),
        adapter=values.get("adapter"),
        train=values.get("train"),
        validation=values.get("validation"),
        without_validation="validation" in values and values["validation"] is None,
        reward=values.get("reward"),
        reward_arguments=arguments,
        reward_function=values.get("reward_function"),
        critic=values.get("critic"),
        reward_model=values.get("reward_model"),
        teachers={key or None: model for key, model in _keyed("teacher", values).items()},
        compute_dtype=values.get("compute_dtype", UPSTREAM_COMPUTE_DTYPE),
        quantised={
            name: values[name]
            for name in bound_quantization.LEAVES
            if values.get(name, "none") != "none"
        },
        origins=origins,
    )


def _keyed(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is bound under `kind` and `kind.KEY`, by the key, which may be empty."""
    parts = {name: name.partition(".") for name in values}
    return {parts[name][2]: value for name, value in values.items() if parts[name][0] == kind}


def _reward_problems(
    values: Mapping[str, Any], arguments: Mapping[str, Any], origins: Mapping[str, str]
) -> list[Problem]:
    """What is wrong between the bindings of the reward."""
    name, function = values.get("reward"), values.get("reward_function")
    return [
        *bound_reward.argument_problems(name, arguments, origins),
        *bound_reward.trust_problems(function, values.get("trust_reward_code"), origins),
        *bound_reward.both_problems(name, function),
    ]


def lowering_rows(bindings: Bindings, leaves: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the report's `local_lowering`: what the launch said, and what runs in its place."""
    model, train, validation = bindings.model, bindings.train, bindings.validation
    rows: dict[str, tuple[str, Any]] = {}
    if model:
        rows["model"] = ("actor_rollout_ref.model.path", {"sha256": model.sha256})
    if bindings.adapter:
        adapter = {"sha256": bindings.adapter.sha256}
        rows["adapter"] = ("actor_rollout_ref.model.lora_adapter_path", adapter)
    if train:
        rows["train"] = ("data.train_files", {"rows": train.count, "sha256": train.sha256})
    if validation:
        rows["validation"] = (
            "data.val_files",
            {"rows": validation.count, "sha256": validation.sha256},
        )
    if bindings.without_validation:
        rows["validation"] = ("data.val_files", None)
    block = "miniverl.reward.provider"
    if bindings.reward and bindings.reward != leaves.get(block):
        field = block if leaves.get(block) else "reward.custom_reward_function.path"
        arguments = {"arguments": bindings.reward_arguments, "scorer": bindings.reward}
        rows["reward"] = (field, arguments if bindings.reward_arguments else bindings.reward)
    if bindings.reward_function:
        function = {
            "name": bindings.reward_function.name,
            "sha256": bindings.reward_function.sha256,
        }
        rows["reward_function"] = ("reward.custom_reward_function.path", function)
    if bindings.critic:
        rows["critic"] = ("critic.model.path", {"sha256": bindings.critic.sha256})
    if bindings.reward_model:
        rows["reward_model"] = (
            "reward.reward_model.model_path",
            {"sha256": bindings.reward_model.sha256},
        )
    for key, teacher in bindings.teachers.items():
        rows[teacher_name(key)] = (_teacher_path(key, leaves), {"sha256": teacher.sha256})
    source_values: dict[str, Any] = {**leaves}
    if "compute_dtype" in bindings.origins:
        field = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
        rows["compute_dtype"] = (field, bindings.compute_dtype)
        source_values.setdefault(field, UPSTREAM_COMPUTE_DTYPE)
    rows |= bound_quantization.rows(bindings.quantised, bindings.origins)
    return [
        {
            "kind": "binding",
            "source_field": field,
            "source_value": source_values.get(field),
            "local_value": local_value,
        }
        for field, local_value in rows.values()
    ]


def _teacher_path(key: str | None, leaves: Mapping[str, Any]) -> str:
    """The leaf that names the teacher of this key, by whatever name it has there."""
    entries = (field for field, value in leaves.items() if key is not None and value == key)
    named = (field.removesuffix(".key") for field in entries if field.startswith(_TEACHERS))
    return next(named, f"{_TEACHERS}teacher_model") + ".model_path"


def _model(name: str) -> Callable[[str, str], Model]:
    def read(text: str, origin: str) -> Model:
        path = Path(text).expanduser()
        if not (path / "config.json").is_file():
            fix = "Give a folder in Hugging Face's layout"
            raise WrongCall([_problem(name, text, origin, "no folder with a config.json", fix)])
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            reason = f"its config.json is not JSON: {error}"
            raise WrongCall([_problem(name, text, origin, reason, "Fetch it again")]) from error
        for media in _MEDIA:
            if media in config:
                reason = f"its config.json has a {media}; only text is trained on here"
                raise WrongCall([_problem(name, text, origin, reason, "Give a model of text")])
        return Model(path=path, sha256=weights_sha256(path))

    return read


def _adapter(text: str, origin: str) -> Model:
    """As peft saves one; what it computes is compared with the launch where the run starts."""
    path = Path(text).expanduser()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (path / file).is_file():
            fix = "Give a folder as peft saves it; of upstream's checkpoint, what its model_merger makes"
            raise WrongCall([_problem("adapter", text, origin, f"no folder with an {file}", fix)])
    return Model(path=path, sha256=weights_sha256(path))


def _rows(name: str) -> Callable[[str, str], Rows]:
    def read(text: str, origin: str) -> Rows:
        path = Path(text).expanduser()
        if not path.is_file():
            raise WrongCall(
                [_problem(name, text, origin, "no such file", "Give a Parquet file of rows")]
            )
        rows = _parquet_rows(name, path, origin)
        if not rows:
            raise WrongCall(
                [_problem(name, text, origin, "it has no rows", "Give a file with rows")]
            )
        return Rows(
            path=path, sha256=rows_sha256(rows), count=len(rows), columns=frozenset(rows[0])
        )

    return read


def _validation(text: str, origin: str) -> Rows | None:
    return None if text == "none" else _rows("validation")(text, origin)


def _parquet_rows(name: str, path: Path, origin: str) -> list[dict[str, Any]]:
    try:
        from pyarrow import (
            ArrowException,
            parquet,
        )  # here only: compiling without rows must not need it
    except ModuleNotFoundError as error:
        reason = "reading Parquet needs pyarrow, which is not installed"
        raise CannotHere([_problem(name, str(path), origin, reason, "Run make setup")]) from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        said = str(error).partition("\n")[0]
        fix = "Give a Parquet file of rows"
        raise WrongCall([_problem(name, str(path), origin, f"not Parquet: {said}", fix)]) from error
    return rows


def _one_of(name: str, known: Sequence[str]) -> Callable[[str, str], str]:
    def read(text: str, origin: str) -> str:
        if text in known:
            return text
        fix = did_you_mean(text, known, f"Known: {', '.join(known)}")
        raise WrongCall([_problem(name, text, origin, f"there is no {name} of that name", fix)])

    return read


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "model": _model("model"),
    "adapter": _adapter,
    "train": _rows("train"),
    "validation": _validation,
    "reward": bound_reward.scorer,
    "reward_function": bound_reward.function,
    "trust_reward_code": lambda text, origin: text,
    "critic": _model("critic"),
    "reward_model": _model("reward_model"),
    "teacher": _model("teacher"),
    "compute_dtype": _one_of("compute_dtype", DTYPES),
    **{name: _one_of(name, bound_quantization.FORMATS) for name in bound_quantization.LEAVES},
}


def _reader(name: str) -> Callable[[str, str], Any] | None:
    """What reads the value of a binding; None for a name that nothing is bound under."""
    kind, dot, key = name.partition(".")
    if dot and kind == "reward" and key:
        return partial(bound_reward.argument, name)
    if dot:
        return _model(name) if kind == "teacher" and key else None
    return _READERS.get(name)


def _unknown(name: str, value: str, origin: str) -> Problem:
    fix = did_you_mean(
        name, _READERS, f"Bind name=value, where name is one of {', '.join(_READERS)}"
    )
    reason = (
        "there is no such binding" if _reader(name) is None else "a binding is written name=value"
    )
    return _problem(name, value or None, origin, reason, fix)


def _problem(field: str, value: object, origin: str, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=origin, reason=reason, fix=fix)
