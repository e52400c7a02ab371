"""Records of version 2: strict reading, the schema, recomputation, cross checks, digests."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import record as records
from miniverl.bench.derive import derived
from miniverl.bench.validate import load, validate
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused

pytestmark = pytest.mark.slow

Record = dict[str, Any]
Edit = Callable[[Record], None]


@pytest.fixture(scope="module")
def written(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return dict(example.measured(tmp_path_factory.mktemp("measured")))


@pytest.fixture
def record(written: Record) -> Record:
    return copy.deepcopy(written)


def fields(record: Record) -> list[str]:
    return [problem.field for problem in validate(record)]


def resealed(record: Record) -> Record:
    """What a forger who knows the format would write: every digest fits again."""
    return records.seal(record)


def numbers(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], int | float]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in items:
            yield from numbers(each, *path, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def edited(record: Record, path: tuple[str | int, ...]) -> Record:
    """A copy with another number there; blocks that are not touched are shared."""
    copied = dict(record)
    copied[str(path[0])] = copy.deepcopy(record[str(path[0])])
    place: Any = copied
    for name in path[:-1]:
        place = place[name]
    number = place[path[-1]]
    place[path[-1]] = number + 1 if isinstance(number, int) else number * 1.5 + 0.25
    return copied


def kinds(record: Record) -> list[tuple[str | int, ...]]:
    """One path to a number for each place in the schema."""
    seen: dict[tuple[str, ...], tuple[str | int, ...]] = {}
    for path, _ in numbers(record):
        seen[tuple("*" if isinstance(name, int) else name for name in path)] = path
    return list(seen.values())


@pytest.mark.parametrize(
    ("role", "is_known"), [("teacher.reasoning-gym/products", True), ("Teacher", False)]
)
def test_each_of_several_teachers_is_a_role_by_its_key(
    record: Record, role: str, is_known: bool
) -> None:
    record["models"][role] = record["models"]["policy"]
    load = record["launches"][0]["model_loads"][0]
    record["launches"][0]["model_loads"].append({**load, "role": role})
    problems = records.schema_problems(record, "test")
    told = {problem.field for problem in problems}
    assert told == (set() if is_known else {"/models", "/launches/0/model_loads/1/role"})


def test_measured_failed_and_blocked_records_are_valid(
    example: ModuleType, written: Record, tmp_path: Path
) -> None:
    assert validate(written) == []
    assert validate(example.failed(tmp_path / "failed")) == []
    assert validate(example.blocked(tmp_path / "blocked")) == []


def test_what_is_written_is_read_back_and_valid(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    write_json(path, record)
    assert load(path) == record
    text = path.read_text()
    assert text.endswith("}\n")
    assert text == json.dumps(record, indent=1, sort_keys=True) + "\n"
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]


def test_no_edited_number_escapes_and_its_block_or_what_follows_is_named(
    example: ModuleType, tmp_path: Path
) -> None:
    small = example.failed(tmp_path)
    for path in kinds(small):
        problems = validate(edited(small, path))
        named = {problem.field.split("/")[1] for problem in problems}
        assert named & {path[0], "measurements", "comparability"}, path


def test_every_single_number_of_a_record_is_under_its_digests(
    example: ModuleType, tmp_path: Path
) -> None:
    small = example.failed(tmp_path)
    for path, _ in numbers(small):
        mistakes = records.seal_mistakes(edited(small, path))
        assert [mistake.field for mistake in mistakes] == [f"/{path[0]}"], path


# A step's own clock readings lie freely between their neighbours, and nothing is computed from them.
_FREE = ("at_seconds", "exit_code", "prompt_ids", "step", "peak_rss_bytes", "series")


def test_an_edited_sample_is_found_even_when_the_digests_are_made_to_fit(record: Record) -> None:
    for path in kinds(record):
        if path[0] == "launches" and not set(_FREE) & set(path):
            found = fields(resealed(edited(record, path)))
            assert found, path
            assert not {"/block_sha256", "/record_sha256"} & set(found)


def test_an_edited_phase_names_the_numbers_that_no_longer_follow(record: Record) -> None:
    record["launches"][0]["steps"][4]["phases"]["rollout"]["seconds"] = 3.0
    found = fields(resealed(record))
    assert "/measurements/launches/0/total_seconds/rollout" in found


def test_an_edited_measurement_names_itself_what_was_found_and_what_follows(record: Record) -> None:
    record["measurements"]["steady_state_median_throughput"]["rollout_tokens_per_second"] = 81.0
    problem = validate(resealed(record))[0]
    rate = "/measurements/steady_state_median_throughput/rollout_tokens_per_second"
    assert problem.field == rate
    assert problem.value == 81.0
    assert "expected 80.0" in problem.reason


def test_an_edited_recipe_no_longer_has_its_digest(record: Record) -> None:
    record["recipe"]["compiled"]["optimizer"]["learning_rate"] = 1e-6
    found = fields(resealed(record))
    assert {"/recipe/recipe_sha256", "/recipe/learning_rate"} <= set(found)
    assert "/comparability/key/recipe_sha256" in found


def test_an_edited_driver_no_longer_is_the_treatment(record: Record) -> None:
    record["hardware"]["driver"] = "596.49"
    assert fields(resealed(record)) == ["/comparability/treatment/driver"]


def test_a_number_that_follows_from_nothing_is_refused(record: Record) -> None:
    record["measurements"]["steady_state_median_seconds"]["sleep"] = 1.0
    assert "/measurements/steady_state_median_seconds/sleep" in fields(resealed(record))


def _swap_reserved(record: Record) -> None:
    memory = record["launches"][0]["memory"]
    memory["peak_allocated_bytes"], memory["peak_reserved_bytes"] = 2000, 1000


def _too_many_tokens(record: Record) -> None:
    record["launches"][0]["steps"][3]["phases"]["update"]["tokens"] = 4 * 4 * 32 + 1


def _clock_backwards(record: Record) -> None:
    record["launches"][0]["steps"][3]["started_at_seconds"] = 1.0


def _phases_longer_than_step(record: Record) -> None:
    record["launches"][0]["steps"][3]["seconds"] = 12.2  # its phases take 12.211


def _step_far_from_its_stamps(record: Record) -> None:
    record["launches"][0]["steps"][3]["seconds"] = 20.0


def _killed_straight(record: Record) -> None:
    record["launches"][0]["exit_code"] = -11


def _other_recipe(record: Record) -> None:
    record["launches"][0]["started"]["recipe_sha256"] = "0" * 64


def _missing_step(record: Record) -> None:
    del record["launches"][0]["steps"][-1]


def _unfilled(record: Record) -> None:
    record["environment"]["os"] = "@OS_NAME@"


def _unfilled_variable(record: Record) -> None:
    record["workload"]["title"] = "run of ${USER}"


def _no_such_day(record: Record) -> None:
    record["measured_at"] = "2026-02-30T00:00:00Z"


def _mismatch_without_files(record: Record) -> None:
    record["resume"]["status"] = "mismatch"


def _reason_of_success(record: Record) -> None:
    record["reason"] = "none"


def _other_digest(record: Record) -> None:
    record["profile_identity"]["digest"] = "0" * 64


def _fewer_launches(record: Record) -> None:
    record["workload"]["launches"] = 5


def _no_resume_planned(record: Record) -> None:
    record["workload"]["checks_resume"] = False


def _foreign_trajectories(record: Record) -> None:
    record["launches"][0]["outputs"]["trajectories.jsonl"] = "0" * 64


def _over_the_limit(record: Record) -> None:
    record["resource_contract"]["peak_rss_limit_gib"] = 1.0
    record["resource_contract"]["peak_rss_within_limit"] = False


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (_swap_reserved, "/launches/0/memory/peak_reserved_bytes"),
        (_too_many_tokens, "/launches/0/steps/3/phases/update/tokens"),
        (_clock_backwards, "/launches/0/steps/3/started_at_seconds"),
        (_phases_longer_than_step, "/launches/0/steps/3/seconds"),
        (_step_far_from_its_stamps, "/launches/0/steps/3/seconds"),
        (_killed_straight, "/launches/0/exit_code"),
        (_other_recipe, "/launches/0/started/recipe_sha256"),
        (_missing_step, "/launches/0/steps"),
        (_unfilled, "/environment/os"),
        (_unfilled_variable, "/workload/title"),
        (_no_such_day, "/measured_at"),
        (_mismatch_without_files, "/resume/differing_files"),
        (_reason_of_success, "/reason"),
        (_other_digest, "/profile_identity/digest"),
        (_fewer_launches, "/launches"),
        (_no_resume_planned, "/resume/status"),
        (_foreign_trajectories, "/launches/0/outputs/trajectories.jsonl"),
        (_over_the_limit, "/resource_contract/peak_rss_within_limit"),
    ],
)
def test_what_does_not_agree_is_named(record: Record, edit: Edit, field: str) -> None:
    edit(record)
    assert field in fields(resealed(record))


def test_what_people_wrote_may_speak_of_placeholders(record: Record) -> None:
    record["findings"][0]["message"] = "${oc.env:HOME} is not resolved"
    assert fields(resealed(record)) == []


def test_claimed_determinism_needs_equal_outputs(example: ModuleType, tmp_path: Path) -> None:
    record = example.measured(tmp_path, (example.Plan(), example.Plan(pid=101)))
    record["launches"][1]["outputs"]["trajectories.jsonl"] = "0" * 64
    assert "/determinism/new_process" in fields(resealed(record))


@pytest.mark.parametrize(
    ("edit", "field", "reason"),
    [
        (lambda r: r.pop("hardware"), "/hardware", "missing field"),
        (lambda r: r.update(more=1), "/more", "unknown field"),
        (lambda r: r["workload"].update(colour="red"), "/workload/colour", "unknown field"),
        (lambda r: r.update(schema_version=3), "/schema_version", "only the versions"),
        (lambda r: r.update(schema_version=True), "/schema_version", "only the versions"),
        (lambda r: r.update(source_commit="4" * 40 + "\n"), "/source_commit", "40 hexadecimal"),
        (lambda r: r.update(measured_at="yesterday"), "/measured_at", "a UTC time"),
        (
            lambda r: r["measurements"].update(peak_rss_gib=None),
            "/measurements/peak_rss_gib",
            "saying why there is none",
        ),
        (
            lambda r: r["launches"][0]["steps"][0].update(seconds=-1.0),
            "/launches/0/steps/0/seconds",
            "a number of at least 0",
        ),
    ],
)
def test_what_the_schema_does_not_allow_is_named(
    record: Record, edit: Edit, field: str, reason: str
) -> None:
    edit(record)
    [problem] = validate(record)
    assert problem.field == field
    assert reason in problem.reason


def test_every_problem_is_told_at_once(record: Record) -> None:
    del record["hardware"], record["reason"]
    record["status"] = "fine"
    assert fields(record) == ["/hardware", "/reason", "/status"]


def test_every_field_of_the_schema_is_described_or_plain() -> None:
    schema = json.loads(
        (Path(records.__file__).parent / "schemas" / "record-v2.json").read_text("utf-8")
    )
    blocks = schema["properties"].items()
    assert [
        name for name, block in blocks if "description" not in block and "const" not in block
    ] == []
    open_blocks = [
        name
        for name, block in blocks
        if block.get("type") == "object" and "additionalProperties" not in block
    ]
    assert open_blocks == ["ext"]


def test_a_number_that_cannot_be_computed_with_is_named(record: Record) -> None:
    record["launches"][0]["steps"][0]["metrics"]["reward_mean"] = 1e308
    assert fields(record) == ["/launches/0/steps/0/metrics/reward_mean"]


def test_a_policy_without_its_parameters_is_named(record: Record) -> None:
    del record["models"]["policy"]["parameters"]
    assert "/models/policy/parameters" in fields(record)


def test_a_model_beside_the_policy_is_told_by_the_recipe_and_the_launches(record: Record) -> None:
    model = {"weights_sha256": "4" * 64, "dtype": "bfloat16"}
    record["recipe"]["compiled"]["reward"]["model"] = model
    record["models"]["reward_model"] = {"pin": "a-pin"}
    loads = record["launches"][0]["model_loads"]
    counts = {"parameters": 42, "trainable_parameters": 0}
    loads.append({**loads[0], **counts, "role": "reward_model"})
    assert derived(record)["models"]["reward_model"] == {
        "weights_sha256": "4" * 64,
        "parameters": 42,
        "trainable_parameters": 0,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
    }


def test_an_invalid_record_is_refused_with_its_path(record: Record, tmp_path: Path) -> None:
    record["reason"] = "edited"
    write_json(tmp_path / "record.json", record)
    with pytest.raises(Refused) as refused:
        load(tmp_path / "record.json")
    origins = {problem.origin for problem in refused.value.problems}
    assert origins == {str(tmp_path / "record.json")}


def test_a_filter_samples_more_groups_than_the_step_keeps(record: Record) -> None:
    """A step of 4 x 4 responses that drew 6 groups: the rollout's tokens are those of 24 responses, at most."""
    for launch in record["launches"]:
        for step in filter(lambda step: step["is_finished"], launch["steps"]):
            step["metrics"]["groups_drawn"] = 6.0
            step["phases"]["rollout"]["tokens"] += 8 * 20
    filtered = records.complete(record)
    assert fields(filtered) == []
    first = filtered["launches"][0]["steps"][0]
    first["phases"]["rollout"]["tokens"] = 24 * 32 + 1
    assert "/launches/0/steps/0/phases/rollout/tokens" in fields(records.complete(filtered))
