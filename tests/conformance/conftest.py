"""The pinned upstream, observed: its wheel is unpacked once, and programs run its functions.

And the rows of docs/conformance.md (table.py says what a row is).
"""

import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from miniverl.compiler.upstream import PINS, fetch_wheel, quiet

RunUpstream = Callable[..., dict[str, Any]]
Record = Callable[[str, str, int, float, float], None]
COMMITTED = Path(__file__).parents[2] / "docs" / "conformance.md"


@pytest.fixture(scope="session")
def run_upstream(tmp_path_factory: pytest.TempPathFactory) -> RunUpstream:
    """`run_upstream("upstream_losses.py")`: what that observation program beside this file prints now.

    Each topic has one session fixture that calls it, in its own test file. `version` names another pin.
    """
    unpacked: dict[str, Path] = {}

    def run(program: str, version: str = "0.9.0") -> dict[str, Any]:
        if version not in unpacked:
            unpacked[version] = tmp_path_factory.mktemp("upstream")
            with zipfile.ZipFile(fetch_wheel(PINS[version].wheel, quiet)) as wheel:
                wheel.extractall(unpacked[version])
        path = Path(__file__).with_name(program)
        done = subprocess.run(
            [sys.executable, str(path), str(unpacked[version])], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        plain: dict[str, Any] = json.loads(done.stdout)
        return plain

    return run


@pytest.fixture(scope="session")
def observed(run_upstream: RunUpstream) -> dict[str, Any]:
    """What the wheel's own functions give now, as upstream.py prints it."""
    return run_upstream("upstream.py")


@pytest.fixture
def record(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Record:
    """`record(function, upstream, cases, max_difference, bound)`: holds the bound, and that the row is committed."""

    def hold(function: str, upstream: str, cases: int, max_difference: float, bound: float) -> None:
        assert max_difference <= bound, f"{function} differs by {max_difference}"
        row = (function, upstream, str(cases), _order(max_difference), _order(bound))
        record_property("conformance", row)
        if not request.config.pluginmanager.has_plugin("conformance-table"):
            lines = COMMITTED.read_text(encoding="utf-8").splitlines()
            committed = [tuple(line.strip("| ").split(" | ")) for line in lines]
            wanted = [row[:3] + row[4:] for row in committed if len(row) == 5]
            assert row[:3] + row[4:] in wanted, f"run `make conformance`: no row of {function}"

    return hold


@pytest.fixture(scope="session")
def largest_difference() -> Callable[[Tensor, object], float]:
    """max |ours - theirs| / max(1, |theirs|): absolute below 1, relative above. Equal infinities, and NaNs, are equal."""

    def measure(ours: Tensor, theirs: object) -> float:
        found, expected = ours.detach().double(), torch.tensor(theirs, dtype=torch.float64)
        assert found.shape == expected.shape
        same = (found == expected) | (found.isnan() & expected.isnan())
        apart = torch.where(same, 0.0, (found - expected).abs() / expected.abs().clamp(min=1))
        return float(apart.nan_to_num(nan=math.inf).max())

    return measure


def _order(value: float) -> str:
    """The power of ten at or above it; what is smaller than 1e-12 differs from machine to machine."""
    return "equal" if value == 0 else f"<= 1e{max(-12, math.ceil(math.log10(value) - 1e-9))}"
