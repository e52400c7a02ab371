"""A finished run as a launch of upstream's own: overrides that compose to what was run, over the files of one folder.

The report of a run holds every leaf of its source and where each was set. What was set becomes an override again;
what was bound becomes a file of the bundle; what one device alone had need of is left out and named.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from miniverl.compiler import bound_quantization, profiles, scripts, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.lower import Compiled, compile_script
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import Problem, Refused
from miniverl.engine.recipe import Recipe
from miniverl.engine.strict import strict_json

ENTRY_POINT = "verl.trainer.main_ppo"
SCRIPT = "launch.sh"
FOLDER_VARIABLE = "HANDOFF_DIR"
MODEL, ADAPTER, CRITIC = "model", "adapter", "critic"
TRAIN, VALIDATION = "data/train.parquet", "data/validation.parquet"
SCORE = "reward/score.py"
SCORE_NAME = "compute_score"

# What was trained: an adapter over the model below it, that model with the adapter merged into it, or every weight.
Kind = Literal["adapter", "merged", "model"]

_COMPUTE_DTYPE = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
_ADAPTER_PATH = "actor_rollout_ref.model.lora_adapter_path"
_TEACHERS = "distillation.teacher_models."
_BLOCK = "miniverl."
_LOCAL = ("physical_runtime", "distributed_only", "local_value", "frozen")
# What the bundle starts from in place of what the run started from: no part of its meaning.
_STARTS = ("policy.weights_sha256", "policy.adapter_sha256", "critic.weights_sha256")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./:@%+-]*")
_WORDS = ("null", "true", "false", "nan", "inf")  # in any case: no text in Hydra's grammar


@dataclass(frozen=True, kw_only=True, slots=True)
class Handed:
    """What upstream is started with. `files`: the place in the bundle of each leaf that names one."""

    config_name: str
    overrides: tuple[str, ...]
    files: Mapping[str, str]


def kinds(recipe: Recipe) -> tuple[Kind, ...]:
    """What a bundle of this run can hold."""
    return ("model",) if recipe.policy.lora is None else ("adapter", "merged")


def places(recipe: Recipe, kind: Kind) -> dict[str, str]:
    """Where each input of the run goes in the bundle, by its name in `recipe.inputs`; and the trained adapter."""
    found = {"model": MODEL, "train": TRAIN}
    if kind == "adapter":
        found["adapter"] = ADAPTER
    if recipe.validation is not None:
        found["validation"] = VALIDATION
    if recipe.critic is not None:
        found["critic"] = CRITIC
    if recipe.reward.model is not None:
        found["reward_model"] = "reward_model"
    if recipe.reward.function is not None:
        found["reward_function"] = SCORE
    teachers = () if recipe.distillation is None else recipe.distillation.teachers
    for number, teacher in enumerate(teachers):
        found[teacher.input] = f"teacher-{number}"
    return found


def handed(recipe: Recipe, report: Mapping[str, Any], kind: Kind, *, writes_score: bool) -> Handed:
    """The launch of the bundle. Raises Refused where no overrides compose to the leaves that were run."""
    rows = {row["upstream_field"]: row for row in report["field_classification"]}
    leaves = {field: row["source_value"] for field, row in rows.items()}
    files = _files(recipe, leaves, kind, writes_score)
    stated = _stated(rows, leaves, files, recipe, writes_score)
    version = report["source_verl"]["tag"].removeprefix("v")
    config_name = profiles.called(report["profile"]).config_name
    wanted = {
        field: value
        for field, value in {**leaves, **stated}.items()
        if field not in files
        and not field.startswith(_BLOCK)
        and rows.get(field, {}).get("resolution_status") != "unresolved"
        and not _copies_a_file(rows.get(field), files)
    }
    defaults = sources.defaults(config_name, version=version)
    composed = _composed(config_name, stated, files, defaults, version)
    # A leaf that copies another is not stated by the launch, and may still have to be here.
    for field, value in wanted.items():
        if composed.get(field) != value or type(composed.get(field)) is not type(value):
            stated[field] = value
    composed = _composed(config_name, stated, files, defaults, version)
    lost = [field for field, value in wanted.items() if composed.get(field) != value]
    if lost:
        raise Refused(_lost(field, leaves.get(field), composed.get(field)) for field in lost)
    texts = tuple(override(field, stated[field], field in defaults) for field in sorted(stated))
    return Handed(config_name=config_name, overrides=texts, files=dict(sorted(files.items())))


def departures(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the run departed from its launch for want of devices: upstream does again as the launch says."""
    held = {_COMPUTE_DTYPE, *bound_quantization.LEAVES.values()}
    return [
        row
        for row in report["local_lowering"]
        if row["kind"] in _LOCAL or (row["kind"] == "binding" and row["source_field"] in held)
    ]


def script(launch: Handed, version: str) -> str:
    """The launch as a bash script; every value is quoted, and further overrides may follow as its arguments."""
    quoted = [_quoted(text) for text in launch.overrides]
    quoted += [f'"{field}=${FOLDER_VARIABLE}/{place}"' for field, place in launch.files.items()]
    lines = "".join(f"  {text} \\\n" for text in quoted)
    return f"""#!/usr/bin/env bash
# Goes on with verl {version} from what miniverl trained. Overrides given as arguments come last and win.
set -euo pipefail
{FOLDER_VARIABLE}=${{{FOLDER_VARIABLE}:-$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd -P)}}
case "${FOLDER_VARIABLE}" in
  *[!A-Za-z0-9._/+-]*)
    echo "Move this folder to a path of letters, digits and ._/+- only: Hydra reads it." >&2
    exit 2 ;;
esac
export PYTHONDONTWRITEBYTECODE=1  # this folder stays as it was checked
exec python3 -m {ENTRY_POINT} \\
{lines}  "$@"
"""


def recompiled(
    root: Path, recipe: Recipe, report: Mapping[str, Any], kind: Kind, progress: upstream.Progress
) -> Compiled:
    """What our own compiler makes of the bundle's script, with the bundle's files bound again."""
    chosen = profiles.called(report["profile"])
    # A path means nothing to a recipe: the script is read as if the bundle lay where no path can matter.
    given = scripts.Given(environment={FOLDER_VARIABLE: "/handoff"}, arguments=(), number=None)
    return compile_script(
        root / SCRIPT,
        (),
        given,
        profile=chosen.name if chosen.input == "hydra" else None,
        bindings=bindings(root, recipe, kind),
        progress=progress,
    )


def bindings(root: Path, recipe: Recipe, kind: Kind) -> list[str]:
    """What binds the bundle's launch to the bundle's files."""
    there = places(recipe, kind)
    texts = [f"{name}={root / place}" for name, place in there.items() if name != "reward_function"]
    if recipe.validation is None:
        texts.append("validation=none")
    reward = recipe.reward
    if reward.function is not None:
        texts.append(f"reward_function={root / SCORE}:{reward.function.name}")
        texts.append(f"trust_reward_code={reward.function.sha256}")
    elif reward.model is None:
        texts.append(f"reward={reward.scorer}")
        texts += [
            f"reward.{name}={json.dumps(value, allow_nan=False)}"
            for name, value in reward.arguments.items()
        ]
    texts += [f"{name}={held}" for name, held in _quantised(recipe).items() if held is not None]
    return [*texts, f"compute_dtype={recipe.policy.compute_dtype}"]


def _quantised(recipe: Recipe) -> dict[str, str | None]:
    """The bindings that hold weights in fewer bits, as upstream does not."""
    teachers = () if recipe.distillation is None else recipe.distillation.teachers
    model = recipe.reward.model
    return {
        bound_quantization.POLICY: recipe.policy.quantization,
        bound_quantization.ROLLOUT: recipe.rollout.weights,
        bound_quantization.TEACHER: teachers[0].quantization if teachers else None,
        bound_quantization.REWARD_MODEL: None if model is None else model.quantization,
    }


def read_json(path: Path) -> Any:
    """A file of the bundle; raises ValueError for what is no strict JSON."""
    return strict_json(path.read_text("utf-8"))


def differences(before: Recipe, after: Recipe) -> list[tuple[str, Any, Any]]:
    """Paths at which two recipes differ, with both values; but for the weights that they start from."""
    first, second = (dict(_flat(recipes.to_dict(one))) for one in (before, after))
    return [
        (path, first.get(path), second.get(path))
        for path in sorted(first.keys() | second.keys())
        if path not in _STARTS and first.get(path) != second.get(path)
    ]


def override(field: str, value: Any, is_in_tree: bool) -> str:
    """`field=value` in Hydra's grammar. Raises Refused for text that no quoting keeps as it is."""
    return f"{'' if is_in_tree else '++'}{field}={_hydra(field, value)}"


def _files(
    recipe: Recipe, leaves: Mapping[str, Any], kind: Kind, writes_score: bool
) -> dict[str, str]:
    there = places(recipe, kind)
    named = {
        "actor_rollout_ref.model.path": there["model"],
        "data.train_files": there["train"],
        # Upstream makes a loader of them whether it validates or not.
        "data.val_files": there.get("validation", there["train"]),
        _ADAPTER_PATH: there.get("adapter"),
        "critic.model.path": there.get("critic"),
        "reward.reward_model.model_path": there.get("reward_model"),
    }
    if recipe.reward.function is not None or writes_score:
        named["reward.custom_reward_function.path"] = SCORE
    teachers = () if recipe.distillation is None else recipe.distillation.teachers
    for teacher in teachers:
        entries = [field for field, value in leaves.items() if value == teacher.key]
        keyed = [field for field in entries if field.startswith(_TEACHERS)]
        entry = (
            keyed[0].removesuffix(".key") if teacher.key and keyed else f"{_TEACHERS}teacher_model"
        )
        named[f"{entry}.model_path"] = there[teacher.input]
    return {field: place for field, place in named.items() if place is not None}


def _copies_a_file(row: Mapping[str, Any] | None, files: Mapping[str, str]) -> bool:
    """Whether a leaf holds what it does because it follows one that the bundle has a file for."""
    origin = "" if row is None else row["origin"]
    return origin.startswith("default ") and any(field in origin for field in files)


def _stated(
    rows: Mapping[str, Mapping[str, Any]],
    leaves: Mapping[str, Any],
    files: Mapping[str, str],
    recipe: Recipe,
    writes_score: bool,
) -> dict[str, Any]:
    """The leaves that the launch set, as it did, but for what the bundle's files take the place of."""
    stated = {
        field: leaves[field]
        for field, row in rows.items()
        if not row["origin"].startswith("default")
        and field not in files
        and not field.startswith((_BLOCK, "hydra."))
    }
    for model in ("actor_rollout_ref.model", "critic.model"):
        for name in ("hf_config_path", "tokenizer_path"):
            if f"{model}.path" in files and stated.get(f"{model}.{name}") is not None:
                stated[f"{model}.{name}"] = None
    if _ADAPTER_PATH in stated:  # of the run's start, which is in the model now
        stated[_ADAPTER_PATH] = None
    if writes_score:
        stated["reward.custom_reward_function.name"] = SCORE_NAME
    elif recipe.reward.function is not None:
        stated["reward.custom_reward_function.name"] = recipe.reward.function.name
    return stated


def _composed(
    config_name: str,
    stated: Mapping[str, Any],
    files: Mapping[str, str],
    defaults: Mapping[str, Any],
    version: str,
) -> Mapping[str, Any]:
    texts = [override(field, value, field in defaults) for field, value in stated.items()]
    texts += [override(field, place, field in defaults) for field, place in files.items()]
    return sources.compose(config_name, sources.numbered(texts), version=version).leaves


def _hydra(field: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(_hydra(field, part) for part in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_hydra(field, key)}:{_hydra(field, part)}" for key, part in value.items())
        return f"{{{','.join(pairs)}}}"
    if "${" in value or "\n" in value:
        reason = "Hydra would read it otherwise than as this text"
        raise Refused([_problem(field, value, reason, "State it by other words in the launch")])
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    # Backslashes count only before a quote, and at the end, where they would take the closing one.
    kept = re.sub(r"(\\*)'", lambda match: match[1] * 2 + "\\'", value)
    kept = re.sub(r"(\\+)$", lambda match: match[1] * 2, kept)
    return f"'{kept}'"


def _quoted(text: str) -> str:
    inside = text.replace("'", "'\\''")
    return f"'{inside}'"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _flat(part, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _lost(field: str, wanted: Any, found: Any) -> Problem:
    reason = f"the bundle's launch composes to {found!r} there, and the run had {wanted!r}"
    return _problem(field, wanted, reason, "Compile the run's source as hydra: with overrides")


def _problem(field: str, value: Any, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="report of the run", reason=reason, fix=fix)
