"""Comparison: what may be compared, what is named as the cause, and how often a verdict is wrong."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from miniverl.bench import record as records
from miniverl.bench.compare import Comparison, compare
from miniverl.bench.entry import source_of
from miniverl.bench.exits import Exit
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import pin
from miniverl.bench.record import complete, load_strict
from miniverl.bench.show import comparison_view
from miniverl.bench.stats import welch
from miniverl.bench.workload import compile_arguments, workload
from miniverl.compiler.lower import compile_launch
from miniverl.compiler.upstream import quiet
from miniverl.engine.recipe import to_dict

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"
STEP = "steady_state_median_seconds.step"
Record = dict[str, Any]


@pytest.fixture(scope="module")
def base(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Five straight launches without any noise."""
    plans = tuple(example.Plan(pid=100 + index) for index in range(5))
    return dict(example.measured(tmp_path_factory.mktemp("base"), plans))


def with_step_seconds(base: Record, seconds: Sequence[float]) -> Record:
    """The record with these steady step times, one for each straight launch."""
    record = copy.deepcopy(base)
    for values, own in zip(record["measurements"]["launches"], seconds, strict=False):
        values["steady_state_median_seconds"]["step"] = own
    return record


def verdict_of(comparison: Comparison, name: str) -> str:
    [metric] = [metric for metric in comparison.metrics if metric.name == name]
    return metric.verdict


def test_a_record_is_the_same_as_itself(base: Record) -> None:
    comparison = compare(base, base)
    assert (comparison.verdict, comparison.cause) == ("same", "none")
    assert comparison.exit_code(strict=True) == Exit.DONE


def test_a_slower_step_is_a_regression_and_the_other_way_an_improvement(base: Record) -> None:
    slower = with_step_seconds(base, [12.2 * 1.1 * each for each in (0.99, 1, 1, 1, 1.01)])
    worse, better = compare(base, slower), compare(slower, base)
    assert (worse.verdict, worse.exit_code(strict=False)) == ("regressed", Exit.NO)
    assert (better.verdict, better.exit_code(strict=False)) == ("improved", Exit.DONE)
    assert verdict_of(worse, STEP) == "regressed"
    assert verdict_of(worse, "cold_startup_seconds") == "same"


def test_of_a_rate_more_is_better(base: Record) -> None:
    faster = copy.deepcopy(base)
    rate = "rollout_tokens_per_second"
    for values in faster["measurements"]["launches"]:
        values["steady_state_median_throughput"][rate] *= 1.2
    name = f"steady_state_median_throughput.{rate}"
    assert verdict_of(compare(base, faster), name) == "improved"
    assert verdict_of(compare(faster, base), name) == "regressed"


def test_noise_beyond_the_margin_is_inconclusive_and_says_how_many_launches_would_tell(
    base: Record,
) -> None:
    noisy = with_step_seconds(base, [11.0, 11.6, 12.2, 12.8, 13.4])
    comparison = compare(base, noisy)
    assert comparison.verdict == "inconclusive"
    assert comparison.exit_code(strict=False) == Exit.DONE
    assert comparison.exit_code(strict=True) == Exit.NO
    needed = [m.launches_needed for m in comparison.metrics if m.name == STEP]
    assert needed[0] is not None
    assert needed[0] > 5


def test_the_margin_decides_between_same_and_regressed(base: Record) -> None:
    slower = with_step_seconds(base, [12.211 * 1.05] * 5)
    assert verdict_of(compare(base, slower), STEP) == "regressed"
    assert verdict_of(compare(base, slower, time_margin=0.06), STEP) == "same"


def test_memory_has_its_own_margin(base: Record) -> None:
    larger = copy.deepcopy(base)
    for values in larger["measurements"]["launches"]:
        values["peak_rss_gib"] *= 1.02
    assert verdict_of(compare(base, larger), "peak_rss_gib") == "regressed"


def test_fewer_than_five_launches_are_described(example: ModuleType, tmp_path: Path) -> None:
    one = example.measured(tmp_path / "one")
    two = example.measured(tmp_path / "two", (example.Plan(slowness=1.5),) * 2)
    comparison = compare(one, two)
    assert comparison.verdict == "descriptive"
    assert comparison.exit_code(strict=True) == Exit.DONE
    [step] = [metric for metric in comparison.metrics if metric.name == STEP]
    assert step.ratio == pytest.approx(1.5, abs=1e-6)
    assert (step.launches_a, step.launches_b, step.interval) == (1, 2, None)


def test_two_published_records_are_described() -> None:
    comparison = compare(load_strict(PUBLISHED), load_strict(PUBLISHED))
    assert comparison.verdict == "descriptive"
    names = {metric.name for metric in comparison.metrics}
    assert "steady_state_median_throughput.teacher_scored_positions_per_second" in names
    assert {metric.ratio for metric in comparison.metrics} == {1.0}


def test_a_published_record_and_ours_are_not_comparable(base: Record) -> None:
    comparison = compare(load_strict(PUBLISHED), base)
    assert (comparison.verdict, comparison.exit_code(strict=False)) == ("not_comparable", Exit.NO)
    fields = {difference.field for difference in comparison.key_differences}
    assert {"device_model", "recipe_sha256", "workload"} <= fields
    assert comparison.metrics == ()


@pytest.fixture(scope="module")
def of_the_published_work(
    example: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Record]:
    """A record of the published workload's recipe on the published card, measured by nobody; `edit` changes its facts."""
    chosen = workload("tiny-opd-k1")  # the recipe of qwen3-0.6b-opd-k1, bound to what is here
    arguments = compile_arguments(chosen, None, fetch(chosen.pins, quiet), "bfloat16")
    compiled = compile_launch(
        arguments.source,
        arguments.overrides,
        profile=arguments.profile,
        bindings=arguments.bindings,
    )
    assert compiled.recipe is not None

    def made(edit: Callable[[Record], None] = lambda facts: None) -> Record:
        folder = tmp_path_factory.mktemp("published")
        facts = example.facts(folder, [example.launch(folder / "straight", example.Plan(), 1)])
        facts["verl"] = {**compiled.report["source_verl"], "distributed_execution_tested": False}
        facts["recipe"] |= {"compiled": to_dict(compiled.recipe), "prompts_available": 64}
        facts["hardware"] |= {
            "device": "cuda",
            "gpu": "NVIDIA GeForce RTX 4080",
            "gpu_count": 1,
            "vram_gib": 15.992,
            "driver": "610.20",
            "cuda_runtime": "13.0",
        }
        pinned = workload("qwen3-0.6b-opd-k1").bindings.models
        for role, name in (("policy", pinned["model"]), ("teacher", pinned["teacher"])):
            facts["models"][role] = {
                "pin": name,
                "source": source_of(pin(name)),
                "revision": pin(name).revision,
                "licence": "Apache-2.0",
                "quantization": "nf4",
            }
        edit(facts)
        return complete(facts)

    return made


def test_the_published_work_measured_again_is_described_since_data_differ(
    of_the_published_work: Callable[..., Record],
) -> None:
    comparison = compare(load_strict(PUBLISHED), of_the_published_work())
    assert (comparison.verdict, comparison.exit_code(strict=True)) == ("descriptive", Exit.DONE)
    assert comparison.reason.startswith("Data differ: file baa99ba8c59d, rows c2e71c25469f. ")
    assert comparison.cause.startswith("confounded (code, ")
    assert "data" in comparison.cause
    assert "driver" in {difference.field for difference in comparison.treatment_differences}
    names = {metric.name for metric in comparison.metrics}
    assert "steady_state_median_throughput.rollout_tokens_per_second" in names
    assert {metric.verdict for metric in comparison.metrics} == {"descriptive"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda facts: facts["hardware"].update(gpu="NVIDIA GeForce RTX 4090"),
        lambda facts: facts["models"]["policy"].update(source="weights of seed 1", revision=None),
        lambda facts: facts["models"]["teacher"].update(quantization=None),
        lambda facts: facts["workload"].update(interrupt_after_update=3),
        lambda facts: facts["recipe"]["compiled"]["policy"]["lora"].update(rank=8),
        lambda facts: facts["recipe"]["compiled"]["rollout"].update(max_response_tokens=32),
    ],
)
def test_other_work_than_the_published_one_is_not_comparable_with_it(
    of_the_published_work: Callable[..., Record], edit: Callable[[Record], None]
) -> None:
    assert compare(load_strict(PUBLISHED), of_the_published_work(edit)).verdict == "not_comparable"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda r: r["hardware"].update(cpu_model="Another CPU"), "device_model"),
        (lambda r: r["hardware"].update(memory_gib=31.0), "device_memory_gib"),
        (lambda r: r["environment"].update(threads=4), "threads"),
        (lambda r: r["workload"].update(version_sha256="0" * 64), "workload_version_sha256"),
        (lambda r: r["workload"].update(warmup_steps=2), "schedule.warmup_steps"),
        (lambda r: r["inputs"][0].update(sha256="0" * 64), "inputs.smollm2-135m-instruct"),
        (lambda r: r["recipe"]["compiled"]["rollout"].update(temperature=0.5), "recipe_sha256"),
        (lambda r: r.update(status="failed"), "status"),
    ],
)
def test_what_must_be_equal_is_named(
    base: Record, edit: Callable[[Record], None], field: str
) -> None:
    other = copy.deepcopy(base)
    edit(other)
    comparison = compare(base, other)
    assert [difference.field for difference in comparison.key_differences] == [field]
    assert field in comparison.reason


def test_a_reboot_does_not_make_another_machine(base: Record) -> None:
    other = copy.deepcopy(base)
    other["hardware"]["memory_gib"] += 0.01
    assert compare(base, other).key_differences == ()


def test_one_differing_field_is_the_cause_and_two_are_confounded(base: Record) -> None:
    other = copy.deepcopy(base)
    other["hardware"]["driver"] = "596.49"
    assert compare(base, other).cause == "driver"
    other["environment"]["packages"]["torch"] = "2.14.0"
    comparison = compare(base, other)
    assert comparison.cause == "confounded (driver, packages.torch)"
    changed = {each.field: (each.a, each.b) for each in comparison.treatment_differences}
    assert changed["packages.torch"] == ("2.13.0+cpu", "2.14.0")


def test_a_new_release_of_ours_alone_is_one_cause(base: Record) -> None:
    other = copy.deepcopy(base)
    other["workload_driver_sha256"] = "0" * 64
    other["miniverl_version"] = "0.2.0"
    other["environment"]["packages"]["miniverl"] = "0.2.0"
    assert compare(base, other).cause == "code"


def test_equal_stacks_give_false_alarms_as_rarely_as_stated() -> None:
    """Launches 1 % apart, steps 2 %: an interval at 95 % leaves out the truth in about 5 % of trials."""
    draw = random.Random(20260901)

    def launches() -> list[float]:
        return [draw.lognormvariate(0, 0.01) * draw.lognormvariate(0, 0.009) for _ in range(5)]

    trials = [welch(launches(), launches()) for _ in range(600)]
    slower = sum(trial.p_above(0) < 0.025 for trial in trials)
    faster = sum(trial.p_below(0) < 0.025 for trial in trials)
    assert (slower + faster) / len(trials) <= 0.07
    # One-sided alarms are what a lopsided test gives; a fair one has as many on either side.
    assert abs(slower - faster) <= 4 * (slower + faster) ** 0.5


def test_verdicts_on_equal_stacks_are_hardly_ever_a_change(base: Record) -> None:
    draw = random.Random(7)

    def noisy() -> Record:
        return with_step_seconds(base, [draw.lognormvariate(2.5, 0.012) for _ in range(5)])

    verdicts = [verdict_of(compare(noisy(), noisy()), STEP) for _ in range(40)]
    assert sum(verdict in ("regressed", "improved") for verdict in verdicts) <= 1
    assert verdicts.count("same") >= 20


def test_a_change_of_ten_per_cent_is_found_nearly_always(base: Record) -> None:
    draw = random.Random(11)

    def noisy(mean: float) -> Record:
        return with_step_seconds(base, [mean * draw.lognormvariate(0, 0.012) for _ in range(5)])

    found = [verdict_of(compare(noisy(12.0), noisy(13.2)), STEP) for _ in range(40)]
    assert found.count("regressed") >= 36


def test_the_result_is_plain_json(base: Record) -> None:
    slower = with_step_seconds(base, [13.0, 13.1, 13.2, 13.1, 13.0])
    plain = json.loads(json.dumps(compare(base, slower).to_dict(), allow_nan=False))
    assert plain["verdict"] == "regressed"
    assert plain["metrics"][0]["name"] == STEP
    assert plain["metrics"][0]["interval"][0] > 1.03


def test_the_table_says_verdict_cause_and_what_differs(base: Record) -> None:
    slower = with_step_seconds(base, [13.4] * 5)
    slower["hardware"]["driver"] = "596.49"
    console = Console(width=140)
    with console.capture() as captured:
        console.print(comparison_view(compare(base, slower)))
    text = captured.get()
    assert "What differs" in text
    assert "596.49" in text
    assert "cause: driver" in text
    assert "+9.7 %" in text


def test_notes_tell_what_to_hold_against_the_numbers(base: Record) -> None:
    other = copy.deepcopy(base)
    other["class"] = "unofficial"
    other["launches"][0]["telemetry"].update(status="invalid", reasons=["gap"])
    assert compare(base, records.seal(other)).notes == (
        "B: the record is unofficial",
        "B: telemetry of launch 1 is invalid: gap",
    )
