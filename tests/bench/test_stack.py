"""The stack: what is installed, and what would be loaded, against what the lock says."""

import base64
import hashlib
import os
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from miniverl.bench import gpu, package_files, stack
from miniverl.bench.gpu_profile import profiles
from miniverl.engine.problem import CannotHere

pytestmark = pytest.mark.slow

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


def test_the_files_of_this_environment_are_those_that_pip_wrote() -> None:
    """Every file of every locked package is read, or was and has not been touched since."""
    found = gpu.detect()
    lock = stack.LOCKS / f"{stack.name_of(found.torch, found.torch_has_cuda)}.txt"
    present = stack.distributions()
    damages = stack.damages(lock.read_text(), present, package_files.remembered_in_venv())
    assert [str(each) for each in damages] == []


@pytest.fixture
def package(tmp_path: Path) -> Distribution:
    """Two files as pip leaves them, and a compiled one, which has no digest."""
    site = tmp_path / "site"
    (site / "one-1.0.dist-info").mkdir(parents=True)
    (site / "one-1.0.dist-info" / "METADATA").write_text("Name: one\nVersion: 1.0\n")
    (site / "one").mkdir()
    lines = ["one/__pycache__/a.cpython-311.pyc,,"]
    for name in ("a.py", "b, c.py"):
        (site / "one" / name).write_text(name)
        digest = hashlib.sha256(name.encode()).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f'"one/{name}",sha256={text},{len(name)}')
    (site / "one-1.0.dist-info" / "RECORD").write_text("\n".join(lines))
    return PathDistribution(site / "one-1.0.dist-info")


def _module(package: Distribution, name: str) -> Path:
    return Path(str(package.locate_file(f"one/{name}")))


def test_untouched_files_are_whole(package: Distribution) -> None:
    assert package_files.damaged({"one": package}, None) == {}


def test_an_edited_file_and_a_missing_one_are_named(package: Distribution) -> None:
    _module(package, "a.py").write_text("b.py")
    _module(package, "b, c.py").unlink()
    assert package_files.damaged({"one": package}, None) == {"one": ("a.py", "b, c.py")}


def test_what_was_whole_is_read_again_once_a_file_was_touched(
    package: Distribution, tmp_path: Path
) -> None:
    remembered = tmp_path / "remembered"
    package_files.damaged({"one": package}, remembered)
    assert remembered.exists()
    edited = _module(package, "a.py")
    times = edited.stat().st_atime_ns, edited.stat().st_mtime_ns
    edited.write_text("A.py")  # as long as before
    os.utime(edited, ns=times)
    assert package_files.damaged({"one": package}, remembered) == {"one": ("a.py",)}


def test_damage_is_not_remembered_as_whole(package: Distribution, tmp_path: Path) -> None:
    _module(package, "a.py").write_text("edited")
    for _ in range(2):
        assert package_files.damaged({"one": package}, tmp_path / "remembered") != {}


def test_what_would_be_loaded_from_elsewhere_is_told_without_its_folders() -> None:
    variables = {
        "LD_PRELOAD": "/home/somebody/libjemalloc.so.2",
        "PYTHONPATH": "/home/somebody/mine/",
    }
    told = [str(each) for each in stack.strangers(variables, ["/site", "/user"], "/user")]
    assert told == [
        "LD_PRELOAD: unset, libjemalloc.so.2",
        "PYTHONPATH: unset, mine",
        "user site-packages: not on the path, on the path",
    ]
    assert list(stack.strangers({"LD_PRELOAD": ""}, ["/site"], "/user")) == []


@pytest.mark.parametrize(
    ("torch", "has_cuda", "name"),
    [
        ("2.13.0+cpu", False, "cpu"),
        ("2.13.0", True, "cu130"),
        ("2.10.0", True, "cu128"),
        ("2.10.0+cu128", True, "cu128"),
        ("2.7.1", True, "cu126"),
        ("99.0", True, "cu130"),
        ("99.0+cpu", False, "cpu"),
        (None, False, "compile"),
    ],
)
def test_a_stack_is_known_by_its_torch(torch: str | None, has_cuda: bool, name: str) -> None:
    assert stack.name_of(torch, has_cuda) == name


def test_an_installed_package_knows_no_stack(tmp_path: Path) -> None:
    assert stack.name_of("2.13.0", True, tmp_path) == "cuda"
    assert stack.minimum_driver("cu130", tmp_path) is None


@pytest.mark.parametrize("driver", ["580.65.06", "596.49", None])
def test_a_driver_that_is_new_enough_or_unknown_will_do(driver: str | None) -> None:
    assert stack.card_problems("cu130", driver, profiles()["4080"]) == []


@pytest.mark.parametrize("driver", ["570.86.10", "580.9"])  # numbers, not text: 9 is less than 65
def test_a_driver_that_is_too_old_is_told_with_both_versions(driver: str) -> None:
    (problem,) = stack.card_problems("cu130", driver, profiles()["4080"])
    assert problem.reason == f"The cu130 stack needs driver 580.65.06, and this is {driver}"


def test_a_stack_and_a_driver_that_are_older_than_the_card_are_both_told() -> None:
    problems = stack.card_problems("cu126", "560.35.03", profiles()["5080"])
    assert [(each.field, each.reason) for each in problems] == [
        ("stack", "The cu126 stack has CUDA 12.6, and an NVIDIA GeForce RTX 5080 needs 12.8"),
        ("driver", "An NVIDIA GeForce RTX 5080 needs driver 570.26, and this is 560.35.03"),
    ]
    assert problems[0].fix == "Install a newer one: MINIVERL_STACK=cu130 make setup"


def test_the_oldest_driver_of_a_stack_is_stated() -> None:
    assert stack.minimum_driver("cu130") == "580.65.06"
    assert stack.minimum_driver("cpu") is None
