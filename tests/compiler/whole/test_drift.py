"""`drift`: what a release that differs in known places is said to change."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.compiler import drift_page, upstream
from miniverl.compiler.drift import ALGORITHMS, Release, compared, drift, release
from miniverl.compiler.profiles import named
from miniverl.compiler.upstream import PINS
from miniverl.engine.problem import WrongCall

pytestmark = pytest.mark.slow

LOSSES = "verl/trainer/ppo/core_algos.py"


@pytest.fixture(scope="module")
def ours() -> Release:
    return release("0.9.0", "ppo_trainer", upstream.quiet)


def changes(ours: Release, theirs: Release) -> set[tuple[str, str]]:
    found = compared(ours, theirs, named(None))
    return {(one["field"], one["change"]) for one in found["touched"]}


def with_module(ours: Release, file: str, edit: tuple[str, str]) -> Release:
    text = ast.unparse(ours.modules[file])
    assert edit[0] in text
    return replace(ours, modules={**ours.modules, file: ast.parse(text.replace(*edit))})


def test_a_release_does_not_drift_from_itself(ours):
    found = compared(ours, ours, named(None))
    assert found["touched_verdicts"] == 0
    assert [found[name] for name in ("added_leaves", "removed_leaves", "changed_functions")] == [
        []
    ] * 3


def test_every_file_of_the_algorithms_is_in_the_pin(ours):
    assert set(ALGORITHMS) <= set(ours.modules)


def test_leaves_that_come_go_or_ship_otherwise_touch_their_verdicts(ours):
    leaves = {**ours.leaves, "algorithm.surprise": 1, "algorithm.gamma": 0.5, "trainer.nnodes": 2}
    del leaves["data.shuffle"]
    theirs = replace(ours, version="9.9", leaves=leaves)
    assert changes(ours, theirs) == {
        ("algorithm.surprise", "added"),
        ("algorithm.gamma", "default"),
        ("data.shuffle", "removed"),
    }
    found = compared(ours, theirs, named(None))
    assert {"after": 2, "before": 1, "field": "trainer.nnodes"} in found["changed_defaults"]


def test_a_changed_formula_touches_the_leaves_that_it_reads(ours):
    theirs = with_module(
        ours, LOSSES, ("def compute_policy_loss_gspo", "def compute_policy_loss_gspo2")
    )
    found = compared(ours, theirs, named(None))
    assert {(row["function"], row["change"]) for row in found["changed_functions"]} == {
        ("compute_policy_loss_gspo", "removed"),
        ("compute_policy_loss_gspo2", "added"),
    }
    clip = with_module(ours, LOSSES, ("config.clip_ratio_low", "(config.clip_ratio_low + 0)"))
    assert ("actor_rollout_ref.actor.clip_ratio_low", "functions") in changes(ours, clip)


def test_a_leaf_that_nothing_read_and_something_reads_now_is_touched(ours):
    body = "def use(config):\n    return config.actor.grad_clip\n"
    file = "verl/trainer/main_ppo.py"
    module = ast.parse(ast.unparse(ours.modules[file]) + "\n" + body)
    theirs = replace(ours, modules={**ours.modules, file: module})
    assert ("actor_rollout_ref.actor.grad_clip", "read") in changes(ours, theirs)


def test_the_page_and_the_lines_name_what_changed(ours):
    theirs = replace(ours, version="9.9", leaves={**ours.leaves, "algorithm.gamma": 0.5})
    found = compared(ours, theirs, named(None))
    assert "- `algorithm.gamma`: `1.0` to `0.5`" in drift_page.page(found)
    assert drift_page.verdict(found).startswith("1 verdicts are touched")
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("against", ["0.9.1", "other==1.0", "verl==", "verl==../x", "verl==1;rm"])
def test_what_names_no_release_is_a_wrong_call(against):
    with pytest.raises(WrongCall):
        drift(against, profile=None, progress=upstream.quiet)


def test_the_committed_page_is_of_the_pin_that_the_rules_are_of():
    page = (Path(__file__).parents[3] / "docs/drift.md").read_text(encoding="utf-8")
    assert f"| 0.9.0, the pin | `{PINS['0.9.0'].wheel.sha256}` |" in page


def test_comparing_loads_no_torch():
    code = "import sys, miniverl.compiler.drift; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
