"""What the parent samples: this process on the host, and a card through a stub of the driver's library."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import sampling

GIB = 1 << 30
READ = """
import json, os
os.environ["NVML_STUB_PID"] = str(os.getpid())
from miniverl.bench import gpu, sampling
(card,) = gpu.detect().cards
with sampling.sampler(card) as sample:
    print(json.dumps(dict(sample(os.getpid()))))
"""


def test_on_a_cpu_resident_memory_is_sampled_and_its_peak() -> None:
    with sampling.sampler(None) as sample:
        readings = sample(os.getpid())

    assert set(readings) == {"rss_bytes", "peak_rss_bytes"}
    assert readings["rss_bytes"] > 0
    assert readings["peak_rss_bytes"] > 0


def test_a_process_that_is_gone_has_no_readings() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with sampling.sampler(None) as sample:
        assert sample(child.pid) == {}


def test_on_a_card_its_readings_come_on_top_and_what_it_does_not_tell_is_left_out(
    tmp_path: Path,
) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the stub of NVIDIA's library needs a C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    answer = subprocess.run(
        [sys.executable, "-P", "-c", READ],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )

    readings: dict[str, Any] = json.loads(answer.stdout)
    assert readings["process_bytes"] == 2 * GIB
    assert readings["rss_bytes"] > 0
    assert "energy_joules" not in readings  # the stub's card does not support it


def test_a_gap_between_samples_casts_doubt_on_them() -> None:
    dense = [{"monotonic_seconds": float(second)} for second in range(5)]

    assert sampling.doubts([]) == []
    assert sampling.doubts(dense) == []
    assert sampling.doubts([*dense, {"monotonic_seconds": 60.0}]) == ["sampling_gap"]
