"""A workload from end to end with real processes, real compiling and a model of a few thousand weights."""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.bench import record, runner, suite, telemetry, validate
from miniverl.bench.exits import Exit
from miniverl.bench.facts import Plan
from miniverl.bench.workload import Contract
from miniverl.compiler.upstream import quiet

pytestmark = pytest.mark.slow

MakePlan = Callable[..., Plan]
ROOMY = Contract(device_hours=1.0, peak_reserved_gib=8.0, peak_rss_gib=8.0, disk_gib=1.0)
STEPS = 8
LIMITS = {  # of a machine that was never probed
    "device": "cpu",
    "threads": 2,
    "torch": "2.13.0",
    "measured_at": "2026-09-01T12:00:00Z",
    "memory_bytes_per_second": 1e10,
    "matmul_flops_per_second": {"float32": 1e11},
}


@pytest.fixture
def make_plan(prepared: Plan, tmp_path: Path) -> MakePlan:
    """That plan with a folder of its own, under another contract, with or without the resume check."""

    def make(*, contract: Contract = ROOMY, checks_resume: bool = False) -> Plan:
        after = prepared.workload.interrupt_after_update if checks_resume else None
        return replace(
            prepared,
            workload=replace(
                prepared.workload,
                contract=contract,
                checks_resume=checks_resume,
                interrupt_after_update=after,
            ),
            interruption=after and runner.Interruption(after_step=after, step_share=0.5),
            folder=tmp_path / "bench" / "tiny-grpo" / "cpu" / "20260901T120000Z-00000000",
            roofline={**(prepared.roofline or {}), "machine": LIMITS},
        )

    return make


def test_a_workload_leaves_a_valid_record_of_an_exact_resume(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    told: list[str] = []
    measured = suite.measure(replace(make_plan(checks_resume=True), telemetry_hz=10), told.append)

    assert measured.exit is Exit.DONE
    written = record.load_strict(measured.path)
    assert validate.validate(written) == []
    assert written == measured.record
    assert record.load_strict(measured.path.parents[1] / "latest.json") == written
    assert written["status"] == "measured"
    assert written["resume"]["status"] == "exact_match"
    for launch, values in zip(
        written["launches"], written["measurements"]["launches"], strict=True
    ):
        sampled = launch["telemetry"]
        assert sampled["every_seconds"] == 0.1
        assert values["seconds"] + 1 < sampled["samples_taken"]  # one a second gives fewer
    tiers = ("same_process", "new_process", "batch_invariant")
    assert [written["determinism"][tier] for tier in tiers] == ["proven"] * 3
    assert written["determinism"]["compared"]["step"] == STEPS + 1
    straight, interrupted, resumed = written["launches"]
    assert [each["role"] for each in written["launches"]] == ["straight", "interrupted", "resumed"]
    assert [step["step"] for step in straight["steps"]] == list(range(1, STEPS + 1))
    assert (interrupted["exit_code"], interrupted["is_finished"]) == (-signal.SIGKILL, False)
    assert resumed["started"]["resumed_step"] in (2, 4)
    assert straight["memory"]["peak_rss_bytes"] > 100 << 20
    assert straight["telemetry"]["fields"]["rss_bytes"] == "measured"
    assert written["models"]["policy"]["weights"] == "synthetic"
    shares = {name: phase["share"] for name, phase in written["roofline"]["phases"].items()}
    assert set(shares) == {"rollout", "score_reference", "update"}
    assert all(0 < share < 1 for share in shares.values())
    assert [line for line in told if re.search(rf"step {STEPS}/{STEPS}  reward \d", line)]

    page = suite.write_page(tmp_path)
    assert page == tmp_path / "site" / "index.html"
    assert written["record_sha256"] in page.read_text("utf-8")
    last_two = [f"record  {measured.path}", f"page    {page}"]
    assert suite.closing_lines([measured], page) == last_two


def test_a_broken_contract_ends_in_a_record_that_names_it(make_plan: MakePlan) -> None:
    measured = suite.measure(make_plan(contract=replace(ROOMY, peak_rss_gib=0.05)), print)

    assert measured.exit is Exit.NO
    assert validate.validate(measured.record) == []
    assert measured.record["status"] == "contract_exceeded"
    assert measured.record["reason_code"] == "memory_exceeded"
    assert "0.050 GiB" in suite.closing_lines([measured], Path("page"))[-1]


def test_a_failed_launch_ends_in_a_record_that_says_why(make_plan: MakePlan) -> None:
    plan = make_plan()
    nowhere = {**plan.compiled.paths, "model": plan.folder / "no-model"}
    plan = replace(plan, compiled=replace(plan.compiled, paths=nowhere))
    measured = suite.measure(plan, print)

    assert measured.exit is Exit.NO
    assert measured.record["status"] == "failed"
    assert measured.record["reason_code"] == "wrong_call"
    assert "no config.json in this folder" in measured.record["reason"]
    assert "no-model" not in measured.record["reason"]  # a path names a machine
    assert measured.record["launches"][0]["failure"]["code"] == "wrong_call"


def test_ctrl_c_ends_the_worker_and_leaves_a_record(make_plan: MakePlan) -> None:
    def press_after_the_first_step(line: str) -> None:
        if "step 1/" in line:
            signal.raise_signal(signal.SIGINT)

    plan = make_plan()
    measured = suite.measure(plan, press_after_the_first_step)

    assert measured.exit is Exit.INTERRUPTED
    assert measured.record["status"] == "interrupted"
    assert validate.validate(measured.record) == []
    worker = json.loads((plan.straight / "worker.json").read_text())["pid"]
    assert telemetry.rss_bytes(worker) is None


def test_only_the_workload_as_it_stands_on_its_own_stack_is_a_reference(
    make_plan: MakePlan,
) -> None:
    plan = make_plan()
    locked = replace(plan, stack=replace(plan.stack, matches=True))

    assert locked.record_class == "reference"
    assert replace(locked, seed=2).record_class == "modified"
    for matches in (False, None):
        other = replace(plan, stack=replace(plan.stack, matches=matches))
        assert other.record_class == "unofficial"
    of_another_card = replace(locked.chosen, is_official=False)
    assert replace(locked, chosen=of_another_card).record_class == "unofficial"


def test_the_kill_is_drawn_from_the_seed_within_one_step(tmp_path: Path) -> None:
    """The delay is a share of the step: at least 0, less than 1."""
    one, other = (
        suite.prepare(
            suite.Request(
                workload="smollm2-grpo-ci",
                gpu="cpu",
                as_is=True,
                launches=None,
                seed=seed,
                out=tmp_path,
            ),
            quiet,
        )
        for seed in (1, 2)
    )

    assert one.interruption is not None
    assert other.interruption is not None
    assert one.interruption.after_step == 1
    assert 0 <= one.interruption.step_share < 1
    assert one.interruption.step_share != other.interruption.step_share
    assert one.recipe.seeds != other.recipe.seeds
