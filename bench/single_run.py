"""One run of a recipe outside the suite: the same worker in a process of its own, without a contract."""

import fcntl
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miniverl.bench import doctor, failure, gpu, run_page, runner, stack
from miniverl.bench.exits import Exit
from miniverl.bench.interrupt import Interrupt, heard
from miniverl.bench.runner import Limits, Listener, Outcome
from miniverl.bench.sampling import Sampling
from miniverl.compiler import bound_reward
from miniverl.compiler.whole import write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import CannotHere, Problem, Refused, WrongCall
from miniverl.engine.recipe import Recipe
from miniverl.engine.strict import strict_json

_WITHOUT_LIMITS = Limits(seconds=math.inf, held_bytes={}, disk_bytes=1 << 62)
_OPTIONS = ("model", "adapter", "train", "validation")  # inputs with an option of their own
_NEW = "Choose another folder"
_EXITS = {
    "wrong_call": Exit.WRONG_CALL,
    "cannot_here": Exit.CANNOT_HERE,
    "disk_full": Exit.CANNOT_HERE,
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
    given: Mapping[str, Path],
    reward_function: str | None,
    trusted: str | None,
    resume: bool,
    allow_changed: Sequence[str],
    device: str | None,
    threads: int | None,
    listen: Listener,
    write: Callable[[str], None],
) -> Ended:
    """Run the recipe in the folder `out`. `given` are paths that stand in for those of the bindings.

    A recipe with a reward function runs where `trusted` is its digest; `reward_function` is FILE:NAME.
    `listen` hears the run's events. The first Ctrl-C lets the step end and saves it, a second stops at once.
    `allow_changed` names what may differ from the process that a resumed run goes on from.
    Raises WrongCall with all that is wrong in the call, CannotHere where the device is not there, and what the
    engine raised. A folder that holds another run, or one that goes on, is left as it is.
    """
    recipe = _recipe(recipe_path)
    _require_trusted(recipe, trusted)
    _require_resumed(allow_changed, resume)
    given = {**given, **_function_file(recipe, reward_function)}
    paths = _paths(recipe, recipe_path, bindings, given)
    if resume:
        _require_same(recipe, out)
    else:
        _require_new(recipe, out)
    _require_free(out)
    found = gpu.detect()
    chosen = gpu.choose(device, False, found)
    if chosen.card is not None:
        running = doctor.running_stack(found)
        too_old = stack.card_problems(running.name, found.driver, chosen.profile)
        if too_old:
            raise CannotHere(too_old)
    _write_inputs(recipe, paths, out)
    _keep_report(recipe, recipe_path.with_name("report.json"), out)
    profile = chosen.profile
    used_threads = profile.threads if threads is None else threads
    arguments = ["--device", profile.device, "--threads", str(used_threads)]
    if resume:
        arguments += ["--resume", *(f"--allow-changed={name}" for name in allow_changed)]
    asked = Interrupt(out, listen, write)
    with heard(asked):
        seen = runner.launch(
            out,
            "resumed" if resume else "straight",
            arguments=arguments,
            environment=runner.worker_environment(used_threads),
            limits=_WITHOUT_LIMITS,
            interruption=None,
            sampling=Sampling(card=None if chosen.card is None else chosen.card.index),
            listen=asked.hear,
            stopped=asked.outcome,
        )
        run_page.leave(out, seen.outcome, write)
    return _ended(seen.outcome)


def _require_trusted(recipe: Recipe, trusted: str | None) -> None:
    """Whoever wrote the recipe does not decide what code runs here."""
    function = recipe.reward.function
    if trusted == (None if function is None else function.sha256):
        return
    option = "--trust-reward-code"
    if function is None:
        reason, fix = "the recipe runs no reward function", f"Leave out {option}"
    else:
        stated = "nothing says that it may run" if trusted is None else "another digest is trusted"
        reason = f"{function.name} is in a file with the digest {function.sha256}, and {stated}"
        fix = f"Read the file; if it may run, give {option} {function.sha256}"
    raise WrongCall([_problem(option, trusted, reason, fix)])


def _require_resumed(allow_changed: Sequence[str], resume: bool) -> None:
    if allow_changed and not resume:
        reason, fix = "a new run has nothing that it could differ from", "Leave it out, or --resume"
        raise WrongCall([_problem("--allow-changed", ", ".join(allow_changed), reason, fix)])


def _function_file(recipe: Recipe, text: str | None) -> dict[str, Path]:
    """The file of FILE:NAME, by the recipe's name for it."""
    if text is None:
        return {}
    bound, wanted = bound_reward.function(text, "command line"), recipe.reward.function
    if wanted is not None and bound.name != wanted.name:
        fix = f"Give {bound.path}:{wanted.name}, or compile the launch again"
        reason = f"the recipe was compiled for the function {wanted.name}"
        raise WrongCall([_problem("--reward-function", text, reason, fix)])
    return {"reward_function": bound.path}


def _ended(outcome: Outcome) -> Ended:
    if outcome.status == "finished":
        return Ended(exit=Exit.DONE, sentence="Finished.")
    raised = failure.raised(outcome.reason_code, outcome.problems)
    if raised is not None:
        raise raised
    sentence = f"{(outcome.reason or outcome.status).rstrip('.')}."
    return Ended(exit=_EXITS.get(outcome.reason_code or "", Exit.NO), sentence=sentence)


def _recipe(path: Path) -> Recipe:
    fix = "Give the recipe that `miniverl compile -o` wrote"
    return recipes.loads(_text(path, "recipe", fix), str(path))


def _text(path: Path, field: str, fix: str) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise WrongCall([_problem(field, str(path), reason, fix)]) from error
    except UnicodeDecodeError as error:
        raise WrongCall([_problem(field, str(path), "is not UTF-8", fix)]) from error


def _paths(
    recipe: Recipe, recipe_path: Path, bindings: Path | None, given: Mapping[str, Path]
) -> dict[str, str]:
    """Every input of the recipe as an absolute path, each of them there."""
    stated = _bindings(bindings, recipe_path.with_name("bindings.json"))
    paths: dict[str, str] = {}
    problems = [
        _problem(name, str(given[name]), "the recipe has no such input", f"Leave out {name}")
        for name in given
        if name not in recipe.inputs and name != "validation"
    ]
    for name in recipe.inputs:
        text = stated.get(name)
        path = given.get(name) or (None if text is None else Path(text))
        fix = f"Give --{name}" if name in _OPTIONS else f"Give --bind {name}=PATH"
        if path is None:
            reason = "the recipe needs it, and nothing says where it is"
            problems.append(_problem(name, None, reason, f"{fix}, or --bindings"))
        elif not path.exists():
            problems.append(_problem(name, str(path), "it is not there", fix))
        else:
            paths[name] = str(path.resolve())
    if problems:
        raise WrongCall(problems)
    return paths


def _bindings(named: Path | None, beside: Path) -> Mapping[str, str | None]:
    if named is None and not beside.exists():
        return {}
    path, fix = named or beside, 'Name the paths in it, as in {"model": ..., "train": ...}'
    try:
        stated = strict_json(_text(path, "bindings", fix))
    except ValueError as error:
        raise WrongCall([_problem("bindings", str(path), str(error), fix)]) from error
    if not isinstance(stated, dict):
        raise WrongCall([_problem("bindings", str(path), "holds no object", fix)])
    problems = [
        Problem(field=name, value=text, origin=str(path), reason="expected a path", fix=fix)
        for name, text in stated.items()
        if not isinstance(text, str | None)
    ]
    if problems:
        raise WrongCall(problems)
    return stated


def _require_new(recipe: Recipe, out: Path) -> None:
    """A run that is there keeps its recipe: without it, it could not go on."""
    path = out / "recipe.json"
    if (
        path.exists()
        and recipes.loads(_text(path, "recipe", _NEW), str(path)).sha256 != recipe.sha256
    ):
        reason = "holds a run of another recipe already"
        raise WrongCall([_problem("out", str(out), reason, _NEW)])


def _require_free(out: Path) -> None:
    """Raises Refused while the engine of another process holds the folder; it locks run.lock."""
    lock = out / "run.lock"
    if not lock.exists():
        return
    with lock.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = f"process {file.read().strip()} is running in this folder"
            fix = "Wait for it to end, or choose another folder"
            raise Refused([_problem("out", str(out), reason, fix)]) from error


def _require_same(recipe: Recipe, out: Path) -> None:
    """A run goes on with its own recipe."""
    path = out / "recipe.json"
    if not path.exists():
        fix = "Leave out --resume, or name the folder of a run"
        raise WrongCall([_problem("out", str(out), "there is no run to go on with", fix)])
    there = recipes.loads(_text(path, "recipe", _NEW), str(path))
    if there.sha256 != recipe.sha256:
        reason = f"the run in {out} has the recipe {there.sha256}"
        fix = f"Resume it with {path}, or run this recipe in another folder"
        raise WrongCall([_problem("recipe", recipe.sha256, reason, fix)])


def _write_inputs(recipe: Recipe, paths: Mapping[str, str], out: Path) -> None:
    write_text(out / "recipe.json", recipes.dumps(recipe))
    write_json(out / "bindings.json", paths)


def _keep_report(recipe: Recipe, beside: Path, out: Path) -> None:
    """The import report beside the recipe, where it tells of this one: it holds the launch that a handoff needs."""
    sha256 = hashlib.sha256(recipes.dumps(recipe).encode()).hexdigest()
    if beside.is_file() and sha256 in (text := _text(beside, "report", "Move it away")):
        write_text(out / "report.json", text)


def _problem(field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin="command line", reason=reason, fix=fix)
