"""The stack: what is installed against what the lock says."""

import hashlib
from pathlib import Path

import pytest

from miniverl.bench import stack
from miniverl.engine.problem import CannotHere

LOCK = """\
# cpu: written by a command; do not edit.
Click==8.1.0 \\
    --hash=sha256:aaaa \\
    --hash=sha256:bbbb
ruamel.yaml==0.18.0 \\
    --hash=sha256:cccc
torch==2.13.0+cpu \\
    --hash=sha256:dddd
# Built from source, after everything above is installed:
antlr4-python3-runtime==4.9.3 \\
    --hash=sha256:eeee
"""
INSTALLED = {
    "click": "8.1.0",
    "ruamel-yaml": "0.18.0",
    "torch": "2.13.0+cpu",
    "antlr4-python3-runtime": "4.9.3",
    "a-package-of-the-user": "1.0",
}


def test_names_are_compared_as_the_index_does_and_extra_packages_do_not_count() -> None:
    assert stack.differences(LOCK, INSTALLED) == ()


def test_another_version_and_a_missing_package_are_each_told() -> None:
    present = {**INSTALLED, "torch": "2.13.0"}
    del present["click"]
    assert [str(one) for one in stack.differences(LOCK, present)] == [
        "Click: locked 8.1.0, not installed",
        "torch: locked 2.13.0+cpu, 2.13.0",
    ]


def test_a_lock_is_named_by_the_digest_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text("", "utf-8")
    found = stack.stack_of("cpu", tmp_path)
    assert found.lock_sha256 == hashlib.sha256(b"").hexdigest()
    assert found.matches is True


def test_without_a_lock_nothing_is_verified(tmp_path: Path) -> None:
    found = stack.stack_of("cpu", tmp_path)
    assert (found.lock_sha256, found.matches, found.differences) == (None, None, ())


def test_a_stack_that_differs_is_refused_with_every_package(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text("nowhere-one==1.0 \\\nnowhere-two==2.0 \\\n", "utf-8")
    with pytest.raises(CannotHere) as caught:
        stack.require(stack.stack_of("cpu", tmp_path))
    told = [(problem.field, problem.value, problem.reason) for problem in caught.value.problems]
    assert told == [
        ("nowhere-one", None, "the lock says 1.0"),
        ("nowhere-two", None, "the lock says 2.0"),
    ]


def test_a_stack_that_matches_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text("", "utf-8")
    stack.require(stack.stack_of("cpu", tmp_path))
