"""The sampler process beside a launch: what it sees, what it survives, and what casts doubt on it.

A card is a stub of the driver's library in C behind the real bindings, and its twin in Python in their place; where
there is no C compiler the twin alone is tested.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import runner, sampling, telemetry
from miniverl.bench.launch_values import sampled
from miniverl.bench.sampling import Sample, Sampling

pytestmark = pytest.mark.slow

GIB = 1 << 30
HERE = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
Look = Callable[..., sampling.Samples]


@pytest.fixture(params=["twin", "stub"] if COMPILER else ["twin"])
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Makes processes that start from here see a driver that behaves so."""
    if request.param == "twin":
        monkeypatch.setenv("PYTHONPATH", str(HERE / "nvml_twin"))
    else:
        library = tmp_path / "libnvidia-ml.so.1"
        source = HERE / "nvml_stub.c"
        subprocess.run(
            [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return lambda how: monkeypatch.setenv("NVML_STUB", how)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process to look at."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid
    child.communicate(b"\n")


@pytest.fixture
def look(sleeper: int, tmp_path: Path) -> Look:
    """Samples of the sleeper, taken until there are `count`, or the sampler is gone."""

    def looked(count: int = 3, card: int | None = 0) -> sampling.Samples:
        how = Sampling(card=card, every_seconds=0.05)
        deadline = time.monotonic() + 10
        with sampling.sampled(sleeper, tmp_path / "telemetry.jsonl", how) as samples:
            while len(samples.all) < count and time.monotonic() < deadline:
                samples.read()
                time.sleep(0.02)
        return samples

    return looked


def doubts(
    samples: Sequence[Sample],
    *,
    has_died: bool = False,
    until: float = 0.0,
    every_seconds: float = 1.0,
) -> list[str]:
    """Of a launch that is as long as its samples, or `until` then."""
    return sampling.doubts(
        samples,
        created_monotonic=samples[0]["monotonic_seconds"],
        ended_monotonic=until or samples[-1]["monotonic_seconds"],
        has_died=has_died,
        every_seconds=every_seconds,
    )


def test_on_a_cpu_memory_clock_and_load_are_sampled(look: Look) -> None:
    (first, *others) = look(card=None).all

    assert set(first) == {
        "monotonic_seconds",
        "rss_bytes",
        "load_average",
        "cpu_mhz",
        "cpu_throttles",
    }
    assert first["rss_bytes"] > 1 << 20
    assert first["load_average"] >= 0
    times = [one["monotonic_seconds"] for one in (first, *others)]
    assert times == sorted(set(times))


def test_of_a_card_every_question_has_a_number_or_a_status(
    look: Look, driver: Callable[[str], None], sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver("full")
    monkeypatch.setenv("NVML_STUB_PID", str(sleeper))
    last = look().all[-1]

    assert set(telemetry.CARD_READINGS) < set(last)
    seen = {name: last[name] for name in telemetry.CARD_READINGS if name != "energy_joules"}
    assert seen == {
        "device_bytes": 3 * GIB,
        "device_reserved_bytes": 300 << 20,
        "process_bytes": 2 * GIB,
        "foreign_processes": 1,  # the one with the other GiB
        "power_watts": 212.5,
        "sm_clock_mhz": 2505,
        "memory_clock_mhz": 11201,
        "temperature_celsius": 61,
        "clock_event_reasons": 0,
        "performance_state": 2,
        "pcie_generation": 4,
        "pcie_width": 16,
        "ecc_uncorrected_errors": "not_supported",
    }


def test_power_that_is_added_up_agrees_with_the_energy_counter(
    look: Look, driver: Callable[[str], None]
) -> None:
    driver("full")
    samples = look(count=5).all
    names = ("power_watts", "energy_joules")
    series: dict[str, list[Any]] = {name: [one[name] for one in samples] for name in names}
    series["at_seconds"] = [one["monotonic_seconds"] for one in samples]
    told = {"series": series, "fields": dict.fromkeys(names, "measured"), "every_seconds": 0.05}
    values = sampled(told, 1.0)["telemetry"]

    assert values["energy_joules"] > 0
    assert values["energy_agreement"] == pytest.approx(1.0, abs=0.05)
    assert values["mean_power_watts"] == 212.5
    assert values["mean_cpu_mhz"] == {"status": "not_measured"}


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("hot", "throttled"), ("lost", "device_lost"), ("full", None)]
)
def test_what_befalls_a_card_casts_doubt_on_the_samples(
    look: Look, driver: Callable[[str], None], behaviour: str, reason: str | None
) -> None:
    driver(behaviour)

    assert doubts(look(count=4).all) == ([] if reason is None else [reason])


def test_a_process_of_somebody_else_on_the_card_casts_doubt_on_the_samples(
    look: Look, driver: Callable[[str], None], sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver("full")
    monkeypatch.setenv("NVML_STUB_PID", str(sleeper))

    assert doubts(look().all) == ["foreign_process"]


def test_numbers_that_mean_nothing_here_may_be_one_of_ours_in_a_container() -> None:
    """The driver lists processes by the host's numbers; of three, one is ours."""
    unknown = max(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    listed = [
        type("Process", (), {"pid": unknown + 10**6 + index, "usedGpuMemory": 1})
        for index in range(3)
    ]

    assert telemetry._foreign_processes(listed, [os.getpid()]) == 2
    assert telemetry._foreign_processes(listed[:1], [os.getpid()]) == 0


def test_a_crash_of_the_drivers_library_does_not_touch_the_run(
    driver: Callable[[str], None], tmp_path: Path
) -> None:
    driver("crash")
    script = tmp_path / "child.py"
    script.write_text("import time; time.sleep(1.5)")
    seen = runner.launch(
        tmp_path,
        "straight",
        arguments=(),
        environment=os.environ,
        limits=runner.Limits(seconds=60.0, held_bytes={}, disk_bytes=1 << 40),
        interruption=None,
        sampling=Sampling(card=0, every_seconds=0.1),
        listen=lambda event: None,
        stopped=runner.never,
        worker=(sys.executable, "-I", str(script)),
    )

    assert seen.outcome.status == "finished"
    assert seen.has_sampler_died
    assert seen.samples == ()
    assert seen.peak_rss_bytes is not None


def test_a_sampler_leaves_with_what_it_looks_at(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    how = Sampling(card=None, every_seconds=0.05)
    with sampling.sampled(child.pid, tmp_path / "telemetry.jsonl", how) as samples:
        pass

    assert samples.all == []
    assert not samples.has_died


def test_a_torn_line_is_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text('{"monotonic_seconds": 1.0}\n{"monotonic_sec')
    samples = sampling.Samples(path)
    samples.read()
    assert samples.all == [{"monotonic_seconds": 1.0}]

    with path.open("a") as file:
        file.write('onds": 2.0}\n')
    samples.read()
    assert [one["monotonic_seconds"] for one in samples.all] == [1.0, 2.0]


def test_too_few_samples_and_gaps_cast_doubt() -> None:
    dense = [{"monotonic_seconds": float(second)} for second in range(5)]

    assert doubts(dense) == []
    assert doubts(dense[:2]) == ["too_few"]
    assert doubts([*dense, {"monotonic_seconds": 60.0}]) == ["gap"]
    assert doubts(dense, until=60.0) == ["gap"]  # nothing was seen of the end
    assert doubts(dense, has_died=True) == ["sampler_died"]


def test_a_gap_is_judged_by_how_often_a_sample_was_due() -> None:
    """Half a second without a sample is nothing at one a second, and four missing ones at ten."""
    seconds = [0.0, 0.1, 0.2, 0.3, 0.8, 0.9]
    samples = [{"monotonic_seconds": second} for second in seconds]

    assert doubts(samples, every_seconds=1.0) == []
    assert doubts(samples, every_seconds=0.1) == ["gap"]
    assert doubts(samples[:4], every_seconds=0.1) == []


def test_a_processor_that_was_slowed_down_meanwhile_casts_doubt() -> None:
    counts = (7, 7, 8)
    samples = [
        {"monotonic_seconds": float(second), "cpu_throttles": count}
        for second, count in enumerate(counts)
    ]

    assert doubts(samples) == ["throttled"]
    assert doubts([{**one, "cpu_throttles": 7} for one in samples]) == []
