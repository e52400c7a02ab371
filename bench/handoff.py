"""A finished run becomes a bundle that upstream can be started with: written beside, proven, checked, then renamed.

Everything that the launch names is in it: the weights below an adapter too, since they may be nowhere else with
these bytes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miniverl.bench import disk, handoff_check, handoff_page, handoff_tree, runner
from miniverl.compiler import handoff, handoff_score, profiles, upstream
from miniverl.compiler.handoff import Handed, Kind
from miniverl.compiler.whole import json_text, sync, write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.digest import weights_sha256
from miniverl.engine.problem import Problem, Refused, WrongCall
from miniverl.engine.recipe import Recipe
from miniverl.engine.strict import strict_json

SCHEMA_VERSION = 1
_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
_NOT_MODEL = ("manifest.json",)  # what the cache notes about its own copy
_SEQUENCES, _MOST_TOKENS = 4, 512  # of the run's own trajectories, to compare logits on
_PACKAGES = ("miniverl", "numpy", "peft", "pyarrow", "safetensors", "torch", "transformers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a run left, and what it was given."""

    folder: Path
    recipe: Recipe
    report: Mapping[str, Any]
    paths: Mapping[str, Path]
    checkpoint: Path
    kind: Kind  # of the bundle


def write(
    folder: Path,
    out: Path,
    *,
    is_merged: bool,
    report: Path | None,
    target: str | None,
    progress: upstream.Progress,
) -> dict[str, Any]:
    """Write the bundle of the run in `folder` to `out`, its adapter merged where asked for; returns its manifest.

    Raises WrongCall for what is no finished run and for a folder that is taken, Refused where the run cannot be
    told to upstream, or its export computes something else than the engine.
    """
    disk.require_free(out, "--out")
    run = _run(folder, report, is_merged=is_merged)
    pin = _target(run, target)
    writes_score = handoff_score.writes_score(run.recipe.reward)
    launch = handoff.handed(run.recipe, run.report, run.kind, writes_score=writes_score)
    with _whole(out) as beside:
        _copy(run, beside)
        proof = _proof(run, beside)
        if writes_score:
            write_text(beside / handoff.SCORE, handoff_score.text(run.recipe.reward.scorer))
        write_text(beside / handoff.SCRIPT, handoff.script(launch, pin))
        write_text(beside / "recipe.json", recipes.dumps(run.recipe))
        write_json(beside / "report.json", run.report)
        manifest = _manifest(run, launch, pin, proof, beside)
        write_json(beside / handoff_tree.MANIFEST, manifest)
        write_text(beside / "README.md", handoff_page.page(manifest))
        write_text(beside / handoff_tree.SUMS, handoff_tree.sums(beside))
        problems = handoff_check.check(beside, None, progress)["problems"]
        if problems:
            raise Refused(problems)
    return manifest


def _manifest(
    run: Run, launch: Handed, pin: str, proof: Mapping[str, Any], beside: Path
) -> dict[str, Any]:
    there = handoff.places(run.recipe, run.kind)
    models = [place for place in there.values() if (beside / place).is_dir()]
    manifest = {
        "departures": handoff.departures(run.report),
        "distributed_execution_tested": False,
        "kind": run.kind,
        "launch": {
            "config_name": launch.config_name,
            "entry_point": handoff.ENTRY_POINT,
            "files": dict(launch.files),
            "overrides": list(launch.overrides),
        },
        "proof": dict(proof),
        "run": {
            "profile": run.report["profile"],
            "profile_identity": run.report["profile_identity"],
            "recipe_sha256": run.recipe.sha256,
            "source": run.report["source"],
            "source_config_sha256": run.report["source_config_sha256"],
            "steps": int(run.checkpoint.name.removeprefix("step-")),
            "validates": run.recipe.validation is not None,
        },
        "schema_version": SCHEMA_VERSION,
        "stated": [row for row in run.report["local_lowering"] if row["kind"] == "override"],
        "target": {"commit": upstream.PINS[pin].commit, "verl": pin},
        "versions": {name: version(name) for name in _PACKAGES},
        "weights": {place: weights_sha256(beside / place) for place in models},
    }
    plain: dict[str, Any] = json.loads(json_text(manifest))
    return plain


def _run(folder: Path, report: Path | None, *, is_merged: bool) -> Run:
    """Raises WrongCall with all that keeps the folder from being a finished run with its source."""
    fix = "Name the folder of a run that has ended: --out of miniverl run, or straight/ of a workload's"
    if not (folder / "recipe.json").is_file():
        raise WrongCall([_problem("run", str(folder), "it holds no recipe.json", fix)])
    recipe = recipes.loads((folder / "recipe.json").read_text("utf-8"), str(folder / "recipe.json"))
    problems = []
    name = handoff.kinds(recipe)[0]
    if is_merged and "merged" not in handoff.kinds(recipe):
        reason = "every weight was trained: model/ is whole without it"
        problems.append(_problem("--merged", True, reason, "Leave it out"))
    steps = sorted((folder / "checkpoints").glob("step-" + "[0-9]" * 6 + "*"))
    if not (folder / name).is_dir():
        at = f"; its last checkpoint is {steps[-1].name}" if steps else ""
        reason = f"it has not ended: there is no {name}/{at}"
        problems.append(
            _problem("run", str(folder), reason, "Go on with it by --resume, to its end")
        )
    elif not steps:
        problems.append(_problem("run", str(folder), "it has no checkpoint to be proven by", fix))
    read = _report(report or folder / "report.json", recipe, problems)
    paths = _paths(folder / "bindings.json", recipe, problems)
    if problems:
        raise WrongCall(problems)
    assert read is not None
    return Run(
        folder=folder,
        recipe=recipe,
        report=read,
        paths=paths,
        checkpoint=steps[-1],
        kind="merged" if is_merged else name,
    )


def _report(path: Path, recipe: Recipe, problems: list[Problem]) -> Mapping[str, Any] | None:
    """The import report that the recipe came from: it holds the source."""
    fix = "Give the report that `miniverl compile --report` wrote with the recipe, by --report"
    try:
        read: Any = strict_json(path.read_text("utf-8"))
        kept = read["generated_recipe_sha256"]
    except OSError as error:
        problems.append(_problem("report", str(path), f"it cannot be read: {error.strerror}", fix))
        return None
    except (ValueError, LookupError, TypeError) as error:
        problems.append(_problem("report", str(path), f"it is no import report: {error}", fix))
        return None
    if kept != hashlib.sha256(recipes.dumps(recipe).encode()).hexdigest():
        problems.append(_problem("report", str(path), "it belongs to another recipe", fix))
    found: Mapping[str, Any] = read
    return found


def _paths(path: Path, recipe: Recipe, problems: list[Problem]) -> dict[str, Path]:
    try:
        stated = strict_json(path.read_text("utf-8"))
        paths = {name: Path(stated[name]) for name in recipe.inputs}
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"it does not say where the run's inputs are: {error}"
        problems.append(_problem("bindings.json", str(path), reason, "Give the whole run folder"))
        return {}
    for name, each in paths.items():
        if not each.exists():
            reason, fix = "it is not there any more", "Put it back"
            problems.append(_problem(name, str(each), reason, fix))
    return paths


def _target(run: Run, target: str | None) -> str:
    """The release that the run was compiled for; raises WrongCall for any other."""
    pin = profiles.called(run.report["profile"]).verl
    if target not in (None, f"verl=={pin}"):
        reason = f"the run was compiled for verl=={pin}, and means something else elsewhere"
        raise WrongCall([_problem("--target", target, reason, f"Leave it out, or say verl=={pin}")])
    return pin


def _copy(run: Run, beside: Path) -> None:
    """The bundle's inputs: what was trained takes the place of what it started from."""
    trained = {name: run.folder / name for name in (run.kind, "critic")}
    for name, place in handoff.places(run.recipe, run.kind).items():
        if (name, run.kind) == ("model", "merged"):
            continue  # it is made where torch is loaded
        source = trained.get(name) or run.paths[name]
        target = beside / place
        if source.is_dir():
            target.mkdir(parents=True)
            for pattern in _MODEL_FILES:
                for file in sorted(source.glob(pattern)):
                    if file.name not in _NOT_MODEL:
                        shutil.copyfile(file, target / file.name)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _proof(run: Run, beside: Path) -> dict[str, Any]:
    """What was trained against the engine's models, in a process of its own: torch is loaded there."""
    exported = handoff.ADAPTER if run.kind == "adapter" else handoff.MODEL
    pairs = {"policy": ("model", exported), "critic": ("critic", handoff.CRITIC)}
    with tempfile.TemporaryDirectory(prefix="miniverl-proof-") as scratch:
        request, answer = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        write_json(
            request,
            {
                "checkpoint": str(run.checkpoint.resolve()),
                "is_merged": run.kind == "merged",
                "recipe": str((run.folder / "recipe.json").resolve()),
                "sequences": list(_sequences(run.folder / "trajectories.jsonl")),
                "threads": os.cpu_count() or 1,
                **{
                    role: {
                        "base": str(run.paths[name].resolve()),
                        "exported": str((beside / place).resolve()),
                    }
                    for role, (name, place) in pairs.items()
                    if name in run.paths
                },
            },
        )
        done = subprocess.run(
            [sys.executable, "-P", "-m", "miniverl.engine.proof", str(request), str(answer)],
            env=runner.worker_environment(os.cpu_count() or 1),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip().rpartition("\n")[2]
            reason = f"what the run exported cannot be read again: {said}"
            raise Refused([_problem(exported, None, reason, "Run it again")])
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    told = []
    for role, proof in found.items():
        if not proof["is_same"]:
            what = "values" if role == "critic" else "logits"
            reason = f"its {what} differ from the engine's by {proof['max_difference']:.3g}"
            told.append(_problem(pairs[role][1], None, reason, "Run it again"))
    if told:
        raise Refused(told)
    return found


def _sequences(log: Path) -> Iterator[list[int]]:
    """Prompts with their responses, the last ones of the run."""
    for line in log.read_text("utf-8").splitlines()[-_SEQUENCES:]:
        row = json.loads(line)
        yield [*row["prompt_tokens"], *row["response_tokens"]][:_MOST_TOKENS]


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes it when the block ends well, all of it on the disk; else it goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.parent / f"_{out.name}.{os.getpid()}.part"
    beside.mkdir()
    try:
        yield beside
        for path in sorted(beside.rglob("*"), reverse=True):
            sync(path)
        sync(beside)
        beside.rename(out)
        sync(out.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="command line", reason=reason, fix=fix)
