"""The pinned upstream, observed once: its wheel is unpacked, and a program runs its functions."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from miniverl.compiler.upstream import PINS, fetch_wheel, quiet


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the wheel's own functions give now, as upstream.py prints it."""
    unpacked = tmp_path_factory.mktemp("upstream")
    with zipfile.ZipFile(fetch_wheel(PINS["0.9.0"].wheel, quiet)) as wheel:
        wheel.extractall(unpacked)
    program = Path(__file__).with_name("upstream.py")
    done = subprocess.run(
        [sys.executable, str(program), str(unpacked)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain
