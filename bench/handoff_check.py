"""Whether a bundle is what was written, and whether upstream would start it: everything computed again.

Four stages, each only when nothing was found before it, since it reads what that one has looked at: files and
sums; what is inside; the launch, compiled again; upstream's own judgement, in a process of its own.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from miniverl.bench import handoff_payload, handoff_tree
from miniverl.compiler import handoff, handoff_score, upstream
from miniverl.engine import recipe as recipes
from miniverl.engine.digest import weights_sha256
from miniverl.engine.problem import CannotHere, Problem, Problems, WrongCall
from miniverl.engine.recipe import Recipe

_PROGRAM = Path(__file__).with_name("handoff_upstream.py")
_SECONDS = 300


def check(folder: Path, python: Path | None, progress: upstream.Progress) -> dict[str, Any]:
    """The answer as plain JSON: `launchable` only where upstream accepted it too. Raises WrongCall for no folder.

    `python` is an interpreter that has the pinned verl; without it, the one that runs this is asked.
    """
    if not folder.is_dir():
        reason, fix = "there is no such folder", "Name a folder that miniverl handoff wrote"
        raise WrongCall([_problem("bundle", str(folder), reason, fix)])
    root = folder.resolve()
    stages: dict[str, str] = {}
    found: list[Problem] = []
    asked: Mapping[str, Any] | None = None
    looks: Mapping[str, Callable[[], list[Problem]]] = {
        "files": lambda: handoff_tree.problems(root),
        "payload": lambda: handoff_payload.problems(root),
        "launch": lambda: _launch_problems(root, progress),
    }
    for name, look in looks.items():
        if found:
            stages[name] = "not_assessed"
            continue
        found = look()
        stages[name] = "failed" if found else "passed"
    if not found:
        asked = ask(root, python)
        found = _upstream_problems(asked)
    stages["upstream"] = _upstream_stage(asked, found)
    return {
        "distributed_execution_tested": False,
        "launchable": stages["upstream"] == "passed",
        "problems": found,
        "stages": stages,
        "upstream": asked,
    }


def ask(root: Path, python: Path | None) -> dict[str, Any]:
    """What upstream says of the bundle's launch; raises CannotHere for an interpreter without the pinned verl."""
    manifest = handoff.read_json(root / handoff_tree.MANIFEST)
    launch = manifest["launch"]
    files = [
        handoff.override(field, str(root / place), True) for field, place in launch["files"].items()
    ]
    request = {
        "config_name": launch["config_name"],
        "overrides": [*launch["overrides"], *files],
    }
    try:
        done = subprocess.run(
            [str(python or sys.executable), "-P", str(_PROGRAM)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            cwd=root,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason, fix = f"it cannot be run: {error}", "Name a Python interpreter"
        raise CannotHere([_problem("--python", str(python), reason, fix)]) from error
    answer: dict[str, Any] = {"verl": None, "steps": []}
    if done.returncode == 0:
        answer = json.loads(done.stdout)
    elif python is not None:
        said = done.stderr.strip().rpartition("\n")[2]
        reason = f"upstream's judgement did not end: {said}"
        raise CannotHere([_problem("--python", str(python), reason, "Ask another interpreter")])
    wanted = manifest["target"]["verl"]
    if python is not None and answer["verl"] != wanted:
        has = f"it has verl {answer['verl']}" if answer["verl"] else "it has no verl"
        fix = f"Name an interpreter with verl=={wanted}"
        raise CannotHere([_problem("--python", str(python), has, fix)])
    if answer["verl"] != wanted:
        answer["steps"] = []
    return answer


def _launch_problems(root: Path, progress: upstream.Progress) -> list[Problem]:
    """Whether script and manifest say the same, and mean the recipe that was run."""
    try:
        manifest = handoff.read_json(root / handoff_tree.MANIFEST)
        report = handoff.read_json(root / "report.json")
        recipe = recipes.loads((root / "recipe.json").read_text("utf-8"), "recipe.json")
        launch = handoff.Handed(
            config_name=manifest["launch"]["config_name"],
            overrides=tuple(manifest["launch"]["overrides"]),
            files=dict(manifest["launch"]["files"]),
        )
        expected = handoff.script(launch, manifest["target"]["verl"])
        told = [] if (root / handoff.SCRIPT).read_text("utf-8") == expected else [_other_script()]
        told += _place_problems(root, recipe, manifest)
        if told:
            return told
        told = _digest_problems(root, recipe, manifest)
        compiled = handoff.recompiled(root, recipe, report, manifest["kind"], progress)
    except Problems as error:
        if isinstance(error, CannotHere):
            raise
        return list(error.problems)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        reason = f"it is not as a bundle is: {type(error).__name__} {error}"
        return [_problem("bundle", str(root), reason, "Have the bundle written again")]
    told += compiled.problems
    if compiled.recipe is None:
        reason = f"it does not compile to a recipe: {compiled.execution['status']}"
        return [*told, _problem(handoff.SCRIPT, None, reason, "Have the bundle written again")]
    for path, before, after in handoff.differences(recipe, compiled.recipe):
        reason = f"the bundle's launch means {after!r}, and {before!r} was run"
        told.append(_problem(f"recipe.{path}", after, reason, "Have the bundle written again"))
    return told


def _place_problems(root: Path, recipe: Recipe, manifest: Mapping[str, Any]) -> list[Problem]:
    """Upstream is given the bundle's own files and no other, and runs no code but the scorer's."""
    if manifest["kind"] not in handoff.kinds(recipe):
        reason = f"a bundle of this run holds {' or '.join(handoff.kinds(recipe))}"
        return [_problem("kind", manifest["kind"], reason, "Have the bundle written again")]
    places = {*handoff.places(recipe, manifest["kind"]).values(), handoff.SCORE}
    named = {*manifest["launch"]["files"].values(), *manifest["weights"]}
    told = [
        _problem(str(place), None, "the run has no such file", "Have the bundle written again")
        for place in sorted(named - places, key=str)
    ]
    if handoff_score.writes_score(recipe.reward):
        expected = handoff_score.text(recipe.reward.scorer)
        if (root / handoff.SCORE).read_text("utf-8") != expected:
            reason = f"it is not the code of the scorer {recipe.reward.scorer}"
            told.append(_problem(handoff.SCORE, None, reason, "Have the bundle written again"))
    return told


def _digest_problems(root: Path, recipe: Recipe, manifest: Mapping[str, Any]) -> list[Problem]:
    """Weights by their content, as recipes name them: those that were trained, and those below an adapter."""
    told = []
    for place, expected in manifest["weights"].items():
        found = weights_sha256(root / place)
        if found != expected:
            reason = f"its weights have the digest {found}, and {expected} was written"
            told.append(_problem(place, None, reason, "Have the bundle written again"))
    if manifest["kind"] == "adapter":
        told += _adapter_problems(root, recipe)
        if manifest["weights"]["model"] != recipe.policy.weights_sha256:
            reason = "its weights are not those that the adapter was trained on"
            told.append(_problem("model", None, reason, "Have the bundle written again"))
    return told


def _adapter_problems(root: Path, recipe: Recipe) -> list[Problem]:
    """Upstream takes rank and scale from the adapter's own file, whatever the launch says."""
    assert recipe.policy.lora is not None, "only such a run has a bundle of this kind"
    path = f"{handoff.ADAPTER}/adapter_config.json"
    config = handoff.read_json(root / path)
    wanted = {"r": recipe.policy.lora.rank, "lora_alpha": recipe.policy.lora.alpha}
    reasons = [
        f"its {name} is {config[name]!r}, and {value:g} was trained"
        for name, value in wanted.items()
        if config[name] != value
    ]
    return [_problem(path, None, reason, "Have the bundle written again") for reason in reasons]


def _upstream_problems(asked: Mapping[str, Any]) -> list[Problem]:
    return [
        _problem(step["step"], None, f"upstream refuses it: {step['reason']}", _MENDS)
        for step in asked["steps"]
        if step["is_accepted"] is False
    ]


_MENDS = "Change the launch by an override, or install what upstream asks for, and check again"


def _upstream_stage(asked: Mapping[str, Any] | None, found: list[Problem]) -> str:
    if asked is None or not asked["steps"]:
        return "not_assessed"
    if found:
        return "failed"
    is_lacking = any(step["is_accepted"] is None for step in asked["steps"])
    return "not_assessed" if is_lacking else "passed"


def _other_script() -> Problem:
    reason = "it is not the script of the manifest's launch"
    return _problem(handoff.SCRIPT, None, reason, "Have the bundle written again")


def _problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="bundle", reason=reason, fix=fix)
