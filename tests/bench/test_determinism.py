"""The tiers of determinism in a record follow from the comparisons that it keeps, and from nothing else."""

import copy
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import determinism
from miniverl.bench import record as records
from miniverl.bench.validate import validate

Record = dict[str, Any]


def _comparison(tier: str, **changes: Any) -> dict[str, Any]:
    return {
        "tier": tier,
        "what": "sampled tokens",
        "how": "again",
        "values": 40,
        "differing": 0,
        "largest_difference": 0.0,
        "first_difference": None,
        "has_to_be_equal": True,
        **changes,
    }


OTHER = {
    "differing": 3,
    "largest_difference": 2e-06,
    "first_difference": "prompt 5, sample 1, number 2: 1.0 and 1.5",
}
COMPARED = {
    "step": 9,
    "prompts": 3,
    "rows": 6,
    "tokens": 40,
    "seconds": 8.5,
    "comparisons": [
        _comparison("same_process"),
        _comparison("batch_invariant"),
        _comparison("batch_invariant", what="gradients", has_to_be_equal=False, **OTHER),
    ],
    "sampler_and_scorer": _comparison("same_process", has_to_be_equal=False, **OTHER),
    "caveats": ["machines were not compared"],
}
LAUNCHES = [{"role": "straight", "outputs": {"a": "1"}}]


def _tiers(launches: Any = LAUNCHES, resume: str = "exact_match", compared: Any = COMPARED) -> Any:
    block = determinism.stated(launches, resume, compared)
    return block["same_process"], block["new_process"], block["batch_invariant"]


def _edited(index: int, **changes: Any) -> dict[str, Any]:
    compared = copy.deepcopy(COMPARED)
    compared["comparisons"][index] |= changes  # type: ignore[index]
    return compared


@pytest.fixture(scope="module")
def written(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    record = dict(example.failed(tmp_path_factory.mktemp("failed")))
    block = determinism.stated(record["launches"], record["resume"]["status"], COMPARED)
    return records.seal(record | {"determinism": block})


@pytest.fixture
def record(written: Record) -> Record:
    return copy.deepcopy(written)


def _fields(record: Record) -> list[str]:
    return [each.field for each in validate(records.seal(record))]


def test_a_tier_is_proven_by_a_comparison_and_only_by_one() -> None:
    assert _tiers() == ("proven", "proven", "proven")
    assert _tiers(compared=None) == ("not_measured", "proven", "not_measured")
    assert _tiers(resume="not_checked") == ("proven", "not_measured", "proven")
    nothing = _edited(0, values=0)
    assert _tiers(compared=nothing)[0] == "not_measured"


@pytest.mark.parametrize(("index", "tiers"), [(0, ("failed", "proven")), (1, ("proven", "failed"))])
def test_one_number_that_differs_fails_its_tier(index: int, tiers: tuple[str, str]) -> None:
    same_process, _, batch_invariant = _tiers(compared=_edited(index, **OTHER))
    assert (same_process, batch_invariant) == tiers


def test_a_new_process_fails_by_a_launch_or_a_resumed_run_that_differs() -> None:
    other = {"role": "straight", "outputs": {"a": "2"}}
    assert _tiers([*LAUNCHES, other], "not_checked")[1] == "failed"
    assert _tiers([*LAUNCHES, *LAUNCHES], "not_checked")[1] == "proven"
    assert _tiers(resume="mismatch")[1] == "failed"


def test_a_record_of_what_was_compared_is_valid(record: Record) -> None:
    assert _fields(record) == []


def test_a_claimed_tier_needs_its_comparison(record: Record) -> None:
    del record["determinism"]["compared"]
    assert _fields(record) == ["/determinism/same_process", "/determinism/batch_invariant"]


def test_a_hidden_difference_contradicts_the_verdict(record: Record) -> None:
    record["determinism"]["compared"]["comparisons"][1] |= OTHER
    assert _fields(record) == ["/determinism/batch_invariant"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"differing": 41}, "differing"),
        ({"first_difference": None}, "first_difference"),
        ({"differing": 0, "first_difference": None}, "largest_difference"),
    ],
)
def test_counts_that_contradict_each_other_are_named(
    record: Record, changes: dict[str, Any], field: str
) -> None:
    record["determinism"]["compared"]["comparisons"][2] |= changes
    assert _fields(record) == [f"/determinism/compared/comparisons/2/{field}"]


def test_people_read_the_tiers_and_how_far_apart_sampler_and_scorer_are(record: Record) -> None:
    assert list(determinism.lines(record)) == [
        "equal bytes in one process proven, in a new process not measured, in other batches proven",
        "sampled tokens again: 3 of 40 differ, by up to 2e-06",
    ]
    shown = dict(determinism.rows(record))
    assert shown["gradients, again"].endswith("first prompt 5, sample 1, number 2: 1.0 and 1.5")
    assert shown["compared in"] == "6 rows of 3 prompts, 40 tokens, step 9, 8.5 s"
    assert shown["not controlled"] == "machines were not compared"


def test_what_broke_a_tier_is_a_doubt_and_what_may_differ_is_none() -> None:
    assert list(determinism.doubts(COMPARED)) == []
    (told,) = determinism.doubts(_edited(0, **OTHER))
    assert told.startswith("sampled tokens differed, again: 3 of 40 differ, by up to 2e-06")


def test_changes_that_a_resume_was_let_make_stand_in_the_record(record: Record) -> None:
    started = record["launches"][0]["started"]
    started["accepted_changes"] = {"torch": {"then": "2.12", "now": "2.13"}}
    assert _fields(record) == []
    started["accepted_changes"] = {"torch": {"then": "2.12"}}
    assert _fields(record) == ["/launches/0/started/accepted_changes/torch/now"]
