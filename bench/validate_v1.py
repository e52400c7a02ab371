"""What must agree within a record of version 1, and within one that was migrated from it.

Version 1 has no raw samples: only its numbers can be held against each other.
"""

import hashlib
import statistics
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from miniverl.bench.finding import Coded, Mistake, coded, pointer
from miniverl.bench.migrate import migrated
from miniverl.bench.record import schema_problems
from miniverl.bench.validate_identity import identity_mistakes_v1
from miniverl.engine.strict import strict_json

Json = Mapping[str, Any]

# A published phase -> the rate that belongs to it.
_RATES = {
    "rollout": "rollout_tokens_per_second",
    "teacher_scoring": "teacher_scored_positions_per_second",
    "actor_update": "update_positions_per_second",
}
_ORIGINAL = "/migrated_from/text"
_ELSEWHERE = ("block_sha256", "ext", "migrated_from", "record_sha256")
_ABSENT = "nothing"
_HALF_A_DIGIT = 0.5e-4  # seconds and rates are published with four decimals
_IDENTICAL = (
    "adapter_and_optimizer_byte_identical",
    "training_state_fields_identical",
    "trajectories_byte_identical",
)


def mistakes_v1(record: Json) -> Iterator[Coded]:
    """Every mistake of a version 1 record that has passed its schema."""
    yield from coded("derived_differs", _positions(record))
    yield from coded("clock_order", _order(record))
    yield from coded("derived_differs", _counts(record))
    yield from coded("wrong_count", _bounds(record))
    yield from coded("limit_broken", _contract(record))
    yield from coded("contradiction", _resume(record["resume"]))
    yield from coded("name_differs", _names(record))
    yield from identity_mistakes_v1(record)


def migration_mistakes(record: Json) -> Iterator[Coded]:
    """Every mistake of a migrated record: its original must be valid, and all else must follow from that."""
    text, sha256 = record["migrated_from"]["text"], record["migrated_from"]["sha256"]
    digest = hashlib.sha256(text.encode()).hexdigest()
    if sha256 != digest:
        reason = f"is not the digest of the text: expected {digest}"
        yield "derived_differs", Mistake("/migrated_from/sha256", sha256, reason, digest)
    try:
        original = strict_json(text)
    except ValueError as error:
        yield "not_strict_json", Mistake(_ORIGINAL, text[:80], str(error))
        return
    if not isinstance(original, dict) or original.get("schema_version") != 1:
        yield "no_object", Mistake(_ORIGINAL, text[:80], "holds no record of version 1")
        return
    problems = schema_problems(original, "")
    for each in problems:
        reason = f"in the original record, {each.field}: {each.reason}"
        yield each.code, Mistake(_ORIGINAL, each.value, reason, each.expected)
    if problems:
        return
    for code, mistake in mistakes_v1(original):
        reason = f"in the original record, {mistake.field}: {mistake.reason}"
        yield code, Mistake(_ORIGINAL, mistake.found, reason, mistake.expected)
    yield from coded("derived_differs", _departures(record, migrated(text)))


def _departures(found: Any, expected: Any, *path: str | int) -> Iterator[Mistake]:
    """Where a migrated record is another than migration makes; seals and `ext` are looked at elsewhere."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in sorted(found.keys() | expected.keys()):
            if path or name not in _ELSEWHERE:
                one, other = found.get(name, _ABSENT), expected.get(name, _ABSENT)
                yield from _departures(one, other, *path, name)
    elif found != expected or isinstance(found, bool) != isinstance(expected, bool):
        reason = f"does not follow from the original record: expected {expected!r}"
        yield Mistake(pointer(*path), found, reason, expected)


def _positions(record: Json) -> Iterator[Mistake]:
    """Rate x median seconds is the response positions of a step: the same in each phase, up to rounding."""
    seconds = record["measurements"]["steady_state_median_seconds"]
    rates = record["measurements"]["steady_state_median_throughput"]
    positions = {phase: seconds[phase] * rates[rate] for phase, rate in _RATES.items()}
    agreed = statistics.median(positions.values())
    limit = record["recipe"]["logical_batch"] * record["recipe"]["response_limit"]
    for phase, found in positions.items():
        rate = _RATES[phase]
        rounding = found * (_HALF_A_DIGIT / seconds[phase] + _HALF_A_DIGIT / rates[rate])
        field = f"/measurements/steady_state_median_throughput/{rate}"
        product = f"times {seconds[phase]} seconds ({phase}) this is {found:.4f} positions a step"
        if abs(found - agreed) > rounding + agreed * 2e-4:
            yield Mistake(
                field, rates[rate], f"{product}, where the other phases have {agreed:.4f}"
            )
        elif found > limit + rounding:
            yield Mistake(
                field, rates[rate], f"{product}, and logical_batch x response_limit is {limit}"
            )


def _order(record: Json) -> Iterator[Mistake]:
    """Start-up, first rollout, first targets and first update follow each other and take their time."""
    measured = record["measurements"]
    names = (
        "cold_startup_seconds",
        "time_to_first_rollout_seconds",
        "time_to_first_teacher_targets_seconds",
        "time_to_first_update_seconds",
    )
    for before, name in pairwise(names):
        if measured[name] <= measured[before]:
            yield Mistake(
                f"/measurements/{name}", measured[name], f"{before} is {measured[before]}"
            )
    total = record["resource_contract"]["total_gpu_workload_seconds"]
    last = measured["time_to_first_update_seconds"]
    steps = sum(measured["steady_state_median_seconds"].values())
    least = last + steps * (record["recipe"]["optimizer_updates"] - 1) / 2
    if total < least:
        field = "/resource_contract/total_gpu_workload_seconds"
        yield Mistake(
            field, total, f"the first update and half of the others alone take {least:.4f}"
        )


def _counts(record: Json) -> Iterator[Mistake]:
    """Counts that follow from the updates and the batch."""
    recipe, measured, resume = record["recipe"], record["measurements"], record["resume"]
    consumed = recipe["optimizer_updates"] * recipe["logical_batch"]
    yield from _unequal(
        ("/recipe/prompts_consumed", recipe["prompts_consumed"], consumed),
        ("/measurements/prompts_consumed", measured["prompts_consumed"], consumed),
        ("/resume/task_cursor", resume["task_cursor"], consumed),
        (
            "/resume/global_optimizer_steps",
            resume["global_optimizer_steps"],
            recipe["optimizer_updates"],
        ),
    )


def _names(record: Json) -> Iterator[Mistake]:
    """Names that stand in two places."""
    identity, verl = record["profile_identity"], record["verl"]
    yield from _unequal(
        ("/profile", record["profile"], identity["profile_name"]),
        ("/verl/commit", verl["commit"], identity["upstream_commit"]),
        ("/verl/tag", verl["tag"], identity["upstream_tag"]),
        ("/verl/repository", verl["repository"], identity["upstream_repository"]),
    )


def _unequal(*pairs: tuple[str, Any, Any]) -> Iterator[Mistake]:
    for field, found, expected in pairs:
        if found != expected:
            reason = f"does not follow from the record: expected {expected!r}"
            yield Mistake(field, found, reason, expected)


def _bounds(record: Json) -> Iterator[Mistake]:
    """Numbers that another one bounds: (field, smaller, larger)."""
    recipe, measured = record["recipe"], record["measurements"]
    bounds = (
        ("/measurements/peak_reserved_gib", "peak_allocated_gib", "peak_reserved_gib"),
        ("/measurements/checkpoint_bytes", "adapter_bytes", "checkpoint_bytes"),
        ("/measurements/total_run_bytes", "checkpoint_bytes", "total_run_bytes"),
        (
            "/measurements/distinct_prompts_consumed",
            "distinct_prompts_consumed",
            "prompts_consumed",
        ),
    )
    for field, smaller, larger in bounds:
        if measured[smaller] > measured[larger]:
            found = f"{smaller} is {measured[smaller]}, {larger} {measured[larger]}"
            yield Mistake(field, measured[field.rpartition("/")[2]], found)
    batches = measured["observed_rollout_physical_batch_sizes"]
    others = (
        ("/hardware/vram_gib", measured["peak_reserved_gib"], record["hardware"]["vram_gib"]),
        (
            "/measurements/distinct_prompts_consumed",
            measured["distinct_prompts_consumed"],
            recipe["prompts_available"],
        ),
        (
            "/artifacts/total_workload_bytes",
            measured["total_run_bytes"],
            record["artifacts"]["total_workload_bytes"],
        ),
        (
            "/resume/interrupt_checkpoint_bytes",
            record["resume"]["interrupt_checkpoint_bytes"],
            record["artifacts"]["total_workload_bytes"],
        ),
        (
            "/measurements/observed_rollout_physical_batch_sizes",
            max(batches),
            recipe["logical_batch"],
        ),
        (
            "/recipe/interrupt_after_updates",
            recipe["interrupt_after_updates"],
            recipe["optimizer_updates"] - 1,
        ),
    )
    for field, found, limit in others:
        if found > limit:
            yield Mistake(field, found, f"more than {limit}")


def _contract(record: Json) -> Iterator[Mistake]:
    contract = record["resource_contract"]
    reserved, limit = (
        record["measurements"]["peak_reserved_gib"],
        contract["peak_reserved_limit_gib"],
    )
    is_within = reserved <= limit
    if contract["peak_reserved_within_limit"] != is_within:
        field = "/resource_contract/peak_reserved_within_limit"
        yield Mistake(field, not is_within, f"{reserved} GiB were reserved, the limit is {limit}")
    hours = contract["total_gpu_workload_seconds"] / 3600
    if hours > contract["gpu_hour_limit"]:
        field = "/resource_contract/gpu_hour_limit"
        yield Mistake(field, contract["gpu_hour_limit"], f"{hours:.4f} hours were used")


def _resume(resume: Json) -> Iterator[Mistake]:
    is_exact = all(resume[name] for name in _IDENTICAL)
    if (resume["status"] == "exact_match") != is_exact:
        told = ", ".join(f"{name} {resume[name]}" for name in _IDENTICAL)
        yield Mistake("/resume/status", resume["status"], told)
