"""What a resume compares: every field told with its values then and now, and let differ only by its name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from miniverl.engine import loop
from miniverl.engine.checkpoint import State, newest
from miniverl.engine.events import CheckpointSaved, Event, RunStarted, Warned
from miniverl.engine.identity import Change, changes, identity, require_names
from miniverl.engine.inputs import Inputs
from miniverl.engine.problem import Refused, WrongCall
from miniverl.engine.recipe import Recipe

_Run = Callable[..., list[Event]]


class _Stopped(Exception):
    """In place of a kill."""


def _stop_at_checkpoint(event: Event) -> None:
    if isinstance(event, CheckpointSaved):
        raise _Stopped


@pytest.fixture
def inputs(tiny_model: Path, tiny_train: Path, tmp_path: Path) -> Inputs:
    """A model's folder of its own, whose files a test may change."""
    return Inputs(model=Path(copytree(tiny_model, tmp_path / "model")), train=tiny_train)


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    data = replace(tiny_recipe.data, validation_sha256=None)
    steps = replace(tiny_recipe.steps, num_steps=3)
    return replace(tiny_recipe, data=data, validation=None, steps=steps)


@pytest.fixture
def resume(recipe: Recipe, inputs: Inputs, tmp_path: Path) -> _Run:
    """Go on with a run that stopped behind its checkpoint of step 2, made with one thread."""
    given: dict[str, Any] = {"device": "cpu", "out": tmp_path / "run"}
    with pytest.raises(_Stopped):
        loop.run(recipe, inputs, **given, threads=1, resume=False, listen=_stop_at_checkpoint)

    def go_on(*allowed: str, threads: int = 1) -> list[Event]:
        heard: list[Event] = []
        loop.run(
            recipe,
            inputs,
            **given,
            threads=threads,
            resume=True,
            listen=heard.append,
            allow_changed=allowed,
        )
        return heard

    return go_on


def _last_state(run: Path) -> State:
    stored = json.loads((run / "checkpoints" / "step-000003" / "state.json").read_text("utf-8"))
    found = newest(run, stored["recipe_sha256"], stored["identity"], lambda event: None)
    assert found is not None
    return found[1]


def test_a_field_that_differs_is_refused_with_its_values_and_the_way_out(resume: _Run) -> None:
    with pytest.raises(Refused) as refused:
        resume(threads=2)
    (problem,) = refused.value.problems
    assert (problem.field, problem.value) == ("threads", "2")
    assert problem.reason.endswith("had 1")
    assert "--allow-changed threads" in problem.fix


def test_an_accepted_field_is_told_by_the_journal_and_by_every_later_checkpoint(
    resume: _Run, tmp_path: Path
) -> None:
    heard = resume("threads", "torch", threads=2)  # torch does not differ, and is not told
    (started,) = (each for each in heard if isinstance(each, RunStarted))
    assert started.accepted_changes == {"threads": {"then": "1", "now": "2"}}
    (warned,) = (each for each in heard if isinstance(each, Warned))
    assert warned.code == "resumed_with_change"
    assert warned.message.startswith("threads was 1 and is 2")
    state = _last_state(tmp_path / "run")
    assert [(each.step, each.name, each.then, each.now) for each in state.accepted_changes] == [
        (2, "threads", "1", "2")
    ]
    assert state.identity["threads"] == "2"


def test_a_resume_without_a_difference_tells_none(resume: _Run, tmp_path: Path) -> None:
    heard = resume()
    (started,) = (each for each in heard if isinstance(each, RunStarted))
    assert (started.resumed_step, started.accepted_changes) == (2, {})
    assert _last_state(tmp_path / "run").accepted_changes == ()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_changed_file_beside_the_weights_is_refused_and_cannot_be_accepted(
    resume: _Run, inputs: Inputs, name: str
) -> None:
    path = inputs.model / name
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**content, "changed": True}))
    with pytest.raises(Refused) as refused:
        resume()
    (problem,) = refused.value.problems
    assert problem.field == f"model/{name}"
    assert "--allow-changed" not in problem.fix
    with pytest.raises(WrongCall, match="no field of this name that may differ"):
        resume(f"model/{name}")


def test_the_version_of_transformers_in_a_config_is_no_content(
    recipe: Recipe, inputs: Inputs
) -> None:
    before = identity(recipe, inputs, "cpu", 1)
    path = inputs.model / "config.json"
    stated = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**stated, "transformers_version": "0.0.1"}))
    assert identity(recipe, inputs, "cpu", 1) == before
    path.write_text(json.dumps({**stated, "rms_norm_eps": 0.5}))
    assert [each.name for each in changes(before, identity(recipe, inputs, "cpu", 1))] == [
        "model/config.json"
    ]


def test_other_inputs_are_refused_before_anything_in_the_run_moves(
    resume: _Run, inputs: Inputs, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with (run / "metrics.jsonl").open("a") as log:
        log.write("a line that no checkpoint binds\n")
    (inputs.model / "model.safetensors").unlink()
    with pytest.raises(WrongCall):
        resume()
    assert "no checkpoint binds" in (run / "metrics.jsonl").read_text()


def test_an_unknown_name_is_a_wrong_call_that_says_what_was_meant() -> None:
    with pytest.raises(WrongCall) as wrong:
        require_names(["torhc", "recipe_sha256", "torch"], {"torch": "2", "model/config.json": "c"})
    first, second = wrong.value.problems
    assert (first.value, first.fix) == ("torhc", "Did you mean torch?")
    assert (second.value, second.fix) == ("recipe_sha256", "Name one of torch")


def test_a_field_that_only_one_version_of_the_code_knows_goes_with_the_code() -> None:
    then, now = {"torch": "2", "engine_sha256": "a"}, {"engine_sha256": "b"}
    found = changes(then, now)
    assert found == [
        Change(name="engine_sha256", then="a", now="b"),
        Change(name="torch", then="2", now=None),
    ]
    assert {each.accepted_as for each in found} == {"engine_sha256"}


def test_a_scorers_packages_are_compared_where_it_scores(recipe: Recipe, inputs: Inputs) -> None:
    scored = replace(recipe, reward=replace(recipe.reward, scorer="math_verify"))
    names = identity(scored, inputs, "cpu", 1).keys() - identity(recipe, inputs, "cpu", 1).keys()
    assert names == {"latex2sympy2-extended", "math-verify", "sympy"}
