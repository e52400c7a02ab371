"""One run of a recipe outside the suite: the same worker in a process of its own, without a contract."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from miniverl.bench import gpu, record, runner, sampling
from miniverl.bench.exits import Exit
from miniverl.bench.live import Live
from miniverl.bench.runner import Limits, Outcome
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Recipe

_WITHOUT_LIMITS = Limits(seconds=math.inf, held_bytes={}, disk_bytes=1 << 62)
_EXITS = {
    "wrong_call": Exit.WRONG_CALL,
    "cannot_here": Exit.CANNOT_HERE,
    "interrupted": Exit.INTERRUPTED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    exit: Exit
    sentence: str


def run(
    recipe_path: Path,
    out: Path,
    *,
    bindings: Path | None,
    given: Mapping[str, Path | None],
    resume: bool,
    device: str | None,
    threads: int | None,
    write: Callable[[str], None],
) -> Ended:
    """Run the recipe in the folder `out`. `given` are paths that stand in for those of the bindings.

    Raises WrongCall with all that is wrong in the call, CannotHere where the device is not there.
    """
    recipe = _recipe(recipe_path)
    paths = _paths(recipe, recipe_path, bindings, given)
    if resume:
        _require_same(recipe, out)
    chosen = gpu.choose(device, False, gpu.detect())
    _write_inputs(recipe, paths, out)
    profile = chosen.profile
    used_threads = profile.threads if threads is None else threads
    arguments = ["--device", profile.device, "--threads", str(used_threads)]
    with sampling.sampler(chosen.card) as sample:
        seen = runner.launch(
            out,
            "resumed" if resume else "straight",
            arguments=[*arguments, "--resume"] if resume else arguments,
            environment=runner.worker_environment(used_threads),
            limits=_WITHOUT_LIMITS,
            interruption=None,
            sample=sample,
            listen=Live(write),
        )
    return _ended(seen.outcome)


def _ended(outcome: Outcome) -> Ended:
    if outcome.status == "finished":
        return Ended(exit=Exit.DONE, sentence="Finished.")
    sentence = f"{(outcome.reason or outcome.status).rstrip('.')}."
    return Ended(exit=_EXITS.get(outcome.reason_code or "", Exit.NO), sentence=sentence)


def _recipe(path: Path) -> Recipe:
    try:
        return recipes.loads(path.read_text("utf-8"), str(path))
    except OSError as error:
        fix = "Give the recipe that `miniverl compile -o` wrote"
        problem = _problem("recipe", str(path), f"cannot be read: {error.strerror}", fix)
        raise WrongCall([problem]) from error


def _paths(
    recipe: Recipe, recipe_path: Path, bindings: Path | None, given: Mapping[str, Path | None]
) -> dict[str, str | None]:
    """Model, train and validation as absolute paths, each of them there."""
    stated = _bindings(bindings, recipe_path.with_name("bindings.json"))
    wanted = ["model", "train", *(["validation"] if recipe.validation is not None else [])]
    paths: dict[str, str | None] = {"validation": None}
    problems = []
    for name in wanted:
        text = stated.get(name)
        path = given[name] or (None if text is None else Path(text))
        if path is None:
            reason = "the recipe needs it, and nothing says where it is"
            problems.append(_problem(name, None, reason, f"Give --{name}, or --bindings"))
        elif not path.exists():
            problems.append(_problem(name, str(path), "it is not there", f"Give --{name}"))
        else:
            paths[name] = str(path.resolve())
    if problems:
        raise WrongCall(problems)
    return paths


def _bindings(named: Path | None, beside: Path) -> Mapping[str, str | None]:
    if named is None and not beside.exists():
        return {}
    return record.load_strict(named or beside)


def _require_same(recipe: Recipe, out: Path) -> None:
    """A run goes on with its own recipe."""
    path = out / "recipe.json"
    if not path.exists():
        fix = "Leave out --resume, or name the folder of a run"
        raise WrongCall([_problem("out", str(out), "there is no run to go on with", fix)])
    there = recipes.loads(path.read_text("utf-8"), str(path))
    if there.sha256 != recipe.sha256:
        reason = f"the run in {out} has the recipe {there.sha256}"
        fix = f"Resume it with {path}, or run this recipe in another folder"
        raise WrongCall([_problem("recipe", recipe.sha256, reason, fix)])


def _write_inputs(recipe: Recipe, paths: Mapping[str, str | None], out: Path) -> None:
    write_text(out / "recipe.json", recipes.dumps(recipe))
    write_json(out / "bindings.json", paths)


def _problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="command line", reason=reason, fix=fix)
