"""The pinned upstream, observed: its wheel is unpacked once, and programs run its functions."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler.upstream import PINS, fetch_wheel, quiet

RunUpstream = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def run_upstream(tmp_path_factory: pytest.TempPathFactory) -> RunUpstream:
    """`run_upstream("upstream_losses.py")`: what that observation program beside this file prints now.

    Each topic has one session fixture that calls it, in its own test file.
    """
    unpacked = tmp_path_factory.mktemp("upstream")
    with zipfile.ZipFile(fetch_wheel(PINS["0.9.0"].wheel, quiet)) as wheel:
        wheel.extractall(unpacked)

    def run(program: str) -> dict[str, Any]:
        path = Path(__file__).with_name(program)
        done = subprocess.run(
            [sys.executable, str(path), str(unpacked)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        plain: dict[str, Any] = json.loads(done.stdout)
        return plain

    return run


@pytest.fixture(scope="session")
def observed(run_upstream: RunUpstream) -> dict[str, Any]:
    """What the wheel's own functions give now, as upstream.py prints it."""
    return run_upstream("upstream.py")
