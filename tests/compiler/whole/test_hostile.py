"""Input that means harm, or nothing: refused or inert, and never a traceback."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniverl.compiler import source as sources
from miniverl.compiler.leaf import nested
from miniverl.compiler.lower import compile_file, compile_launch
from miniverl.compiler.mapping import read
from miniverl.compiler.source import Source, numbered
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import CannotHere, Problem, Problems, Refused, WrongCall

pytestmark = pytest.mark.slow

OUTSIDE = "it takes config files from outside of the pinned tree"
LEADING_OUT = [
    "hydra.searchpath=[/evil]",
    "+hydra.searchpath=[file:///evil]",
    "data=../../evil",
    "data='../evil'",
    "data=[../evil]",
    "+data@data=/evil",
    "model_engine=pkg://evil",
    "+../../evil=x",
    "+data/../../evil=x",
]


def test_no_override_composes_files_from_outside_of_the_tree():
    with pytest.raises(Refused) as refusal:
        sources.compose("ppo_trainer", numbered(LEADING_OUT), version="0.9.0")
    assert [one.origin.partition(": ")[2] for one in refusal.value.problems] == LEADING_OUT
    assert {one.reason for one in refusal.value.problems} == {OUTSIDE}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("=", "it names no field"),
        ("+=", "it names no field"),
        ("~", "it names no field"),
        ("+a.b=" + 3000 * "[" + 3000 * "]", "maximum recursion depth exceeded"),
    ],
)
def test_an_override_that_hydra_stumbles_over_is_refused_with_the_others(override, reason):
    with pytest.raises(Refused) as refusal:
        sources.compose("ppo_trainer", numbered([override, "data.nope=1"]), version="0.9.0")
    mine, other = sorted(refusal.value.problems, key=lambda one: one.origin)
    assert mine.reason.startswith(reason)
    assert other.field == "data.nope"


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "hydra/config", ""])
def test_a_config_name_that_leads_elsewhere_is_a_wrong_call(name):
    with pytest.raises(WrongCall):
        compile_launch(f"hydra:{name}", [])
    with pytest.raises(WrongCall):
        compile_launch(f"launch:{name}", [])


def test_the_environment_is_read_by_no_resolver(monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    names = ("SECRET", "HOME", "PATH", "PYTHONPATH", "LANG")
    overrides = [f"+trainer.x{number}=${{oc.env:{name}}}" for number, name in enumerate(names)]
    with pytest.raises(Refused) as refusal:
        sources.compose("ppo_trainer", numbered(overrides), version="0.9.0")
    assert len(refusal.value.problems) == len(names)
    assert all("not found" in one.reason for one in refusal.value.problems)
    assert "s3cret" not in str(refusal.value)


def test_a_reference_to_the_environment_in_a_file_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("data:\n  train_files: ${oc.env:SECRET}\n", encoding="utf-8")
    with pytest.raises(Refused, match=r"\(config\.yaml:2\): a reference that was left unresolved"):
        compile_launch(str(path), [])


def test_what_a_shell_would_run_is_text_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = ["'$(touch evil)'", "'`touch evil`'", "'; touch evil'", "'| touch evil'", "'&& x'"]
    source = sources.compose(
        "ppo_trainer",
        numbered([f"+trainer.x{number}={value}" for number, value in enumerate(values)]),
        version="0.9.0",
    )
    assert [source.leaves[f"trainer.x{number}"] for number in range(5)] == [
        value.strip("'") for value in values
    ]
    assert list(tmp_path.iterdir()) == []


def test_overrides_that_are_none_are_refused_each_with_its_number():
    overrides = ["", "=", "a", "\x00=1", "data.seed=1\ndata.seed=2", "x" * 9000, "--config-dir=/e"]
    with pytest.raises(Refused) as refusal:
        sources.compose("ppo_trainer", numbered(overrides), version="0.9.0")
    problems = refusal.value.problems
    assert [one.origin.partition(":")[0] for one in problems] == [
        f"override {number}" for number in range(1, len(overrides) + 1)
    ]
    assert_complete(problems)


@pytest.mark.parametrize("kind", ["a file", "below a file", "no such device"])
def test_a_cache_that_cannot_be_written_is_said_of_this_machine(kind, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    folder = {"a file": file, "below a file": file / "cache", "no such device": Path("/proc/1/x")}
    monkeypatch.setenv("MINIVERL_CACHE", str(folder[kind]))
    with pytest.raises(CannotHere) as raised:
        compile_launch("launch:grpo", [])
    (problem,) = raised.value.problems
    assert (problem.field, problem.value) == ("cache folder", str(folder[kind]))
    assert problem.reason.startswith("it cannot be written: ")


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(["grpo", "vllm", "???", "<x>", "1e-6", "-1", "auto", "fsdp2", "cosine"]),
    st.lists(st.one_of(st.integers(-2, 2), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(st.sampled_from(["a", "path", "enable"]), st.integers(-1, 1), max_size=2),
)


@st.composite
def mutations(draw: st.DrawFn, fields: list[str]) -> list[tuple[str, str, Any]]:
    """Fields, or what lies above them, to be set, taken away, or given something below."""
    mutated = []
    for _ in range(draw(st.integers(1, 3))):
        parts = draw(st.sampled_from(fields)).split(".")
        above = ".".join(parts[: draw(st.integers(1, len(parts)))])
        field = draw(st.sampled_from([".".join(parts), ".".join(parts), above]))
        mutated.append((draw(st.sampled_from(["set", "drop", "below"])), field, draw(ANYTHING)))
    return mutated


def mutated(config: dict[str, Any], changes: list[tuple[str, str, Any]]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    for kind, field, value in changes:
        *parents, name = [*field.split("."), *(["new"] if kind == "below" else [])]
        section: Any = config
        for parent in parents:
            if not isinstance(section.get(parent), dict):
                section[parent] = {}
            section = section[parent]
        if kind == "drop":
            section.pop(name, None)
        else:
            section[name] = value
    return config


def assert_complete(problems: tuple[Problem, ...]) -> None:
    for one in problems:
        assert one.field
        assert one.origin
        assert one.reason
        assert one.fix


def answer(path: Path, profile: str | None, bound: Any) -> tuple[Problem, ...]:
    try:
        compiled = compile_file(path, bound, profile, quiet)
    except Problems as raised:
        return raised.problems
    json.dumps(compiled.report, allow_nan=False)
    assert (compiled.status == "accepted") == (not compiled.problems)
    return compiled.problems


ANY_TIME = settings(deadline=None, suppress_health_check=list(HealthCheck))
SUBSET = Path(__file__).parents[1] / "data" / "subset.yaml"


@settings(ANY_TIME, max_examples=40)
@given(data=st.data())
def test_a_mutated_config_is_accepted_or_answered_by_problems(data, grpo: Source, bound, tmp_path):
    changes = data.draw(mutations(sorted(grpo.leaves)))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(mutated(nested(grpo.leaves), changes)), encoding="utf-8")
    assert_complete(answer(path, None, bound))


@settings(ANY_TIME, max_examples=110)
@given(data=st.data())
def test_a_mutated_subset_is_accepted_or_answered_by_problems(data, bound, tmp_path):
    leaves = {**read(SUBSET).leaves, "miniverl.actor.quantization": "none"}
    changes = data.draw(mutations(sorted(leaves)))
    version = data.draw(st.sampled_from([1, 2, 3]))
    path = tmp_path / "subset.json"
    path.write_text(json.dumps(mutated(nested(leaves), changes)), encoding="utf-8")
    assert_complete(answer(path, f"verl-rl-v0.9-single-gpu-v{version}", bound))


@settings(ANY_TIME, max_examples=5)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "+", "++", "~"]),
            st.sampled_from(
                [
                    "data.seed",
                    "data",
                    "trainer.x",
                    "algorithm.kl_ctrl",
                    "actor@actor",
                    "model_engine",
                ]
            ),
            st.text("=[]{}'\"$,\\ax1.:~@-", max_size=6),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_mutated_overrides_are_accepted_or_answered_by_problems(parts):
    overrides = [f"{sign}{key}={value}" for sign, key, value in parts]
    try:
        compiled = compile_launch("launch:grpo", overrides)
    except Problems as raised:
        problems = raised.problems
    else:
        problems = compiled.problems
    assert_complete(problems)
