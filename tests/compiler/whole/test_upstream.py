"""Pinned files come through the user's pip, verified, whole or not at all. The registry here is a folder."""

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from miniverl.compiler import upstream
from miniverl.compiler.upstream import PINS, Upstream, Wheel, fetch_wheel, quiet, tree
from miniverl.engine.problem import CannotHere, Problems, Refused

pytestmark = pytest.mark.slow

TREE = {
    "verl/trainer/config/ppo_trainer.yaml": "a: 1\n",
    "verl/trainer/config/actor/actor.yaml": "b: 2\n",
    "verl/trainer/config/__init__.py": "raise SystemExit\n",
    "verl/trainer/main_ppo.py": "raise SystemExit\n",
}
TREE_SHA256 = hashlib.sha256(
    "".join(
        f"{name} {hashlib.sha256(text).hexdigest()}\n"
        for name, text in (("actor/actor.yaml", b"b: 2\n"), ("ppo_trainer.yaml", b"a: 1\n"))
    ).encode()
).hexdigest()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one place that pip looks in, and an empty cache."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def publish(registry: Path) -> Callable[..., Wheel]:
    """Puts a wheel with the given members into the registry; the result is a true pin of it."""

    def put(members: dict[str, str]) -> Wheel:
        metadata = "Metadata-Version: 2.1\nName: verl\nVersion: 0.9.0\n"
        path = registry / "verl-0.9.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in members.items():
                wheel.writestr(name, text)
            wheel.writestr("verl-0.9.0.dist-info/METADATA", metadata)
            wheel.writestr("verl-0.9.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("verl-0.9.0.dist-info/RECORD", "")
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        return Wheel(
            name="verl", version="0.9.0", file=path.name, bytes=len(content), sha256=sha256
        )

    return put


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Wheel], Upstream]:
    def pin(wheel: Wheel) -> Upstream:
        made = replace(PINS["0.9.0"], wheel=wheel, tree_sha256=TREE_SHA256)
        monkeypatch.setattr(upstream, "PINS", {"0.9.0": made})
        return made

    return pin


def files_below(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def reason_of(raised: Problems) -> str:
    (problem,) = raised.problems
    return problem.reason


def test_a_wheel_arrives_in_the_cache_with_the_pinned_bytes(publish, tmp_path):
    wheel = publish(TREE)
    told: list[tuple[str, int, int]] = []
    path = fetch_wheel(wheel, lambda *progress: told.append(progress))
    assert path == tmp_path / "cache" / "wheels" / wheel.file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256
    assert told[-1] == (wheel.file, wheel.bytes, wheel.bytes)


def test_a_wheel_in_the_cache_needs_no_registry(publish, registry):
    wheel = publish(TREE)
    fetch_wheel(wheel, quiet)
    (registry / wheel.file).unlink()
    assert fetch_wheel(wheel, quiet).exists()


def test_wrong_bytes_are_refused_by_both_digests_and_leave_nothing_behind(publish, tmp_path):
    wheel = publish(TREE)
    with pytest.raises(Refused) as refusal:
        fetch_wheel(replace(wheel, sha256="0" * 64), quiet)
    assert refusal.value.problems[0].field == wheel.file
    assert reason_of(refusal.value).endswith(f"expected {'0' * 64}, found {wheel.sha256}")
    assert files_below(tmp_path / "cache") == []


def test_a_wrong_size_is_refused(publish, tmp_path):
    wheel = publish(TREE)
    with pytest.raises(
        Refused, match=f"expected {wheel.bytes + 1} bytes, found {wheel.bytes} bytes"
    ):
        fetch_wheel(replace(wheel, bytes=wheel.bytes + 1), quiet)
    assert files_below(tmp_path / "cache") == []


def test_a_damaged_wheel_in_the_cache_is_refused(publish):
    wheel = publish(TREE)
    path = fetch_wheel(wheel, quiet)
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(Refused, match=f"expected {wheel.sha256}"):
        fetch_wheel(wheel, quiet)


def test_what_pip_cannot_get_is_one_sentence_about_this_machine(publish, registry):
    wheel = publish(TREE)
    (registry / wheel.file).unlink()
    with pytest.raises(CannotHere) as raised:
        fetch_wheel(wheel, quiet)
    assert reason_of(raised.value).startswith(
        "it is not in the cache and pip cannot get it: Could not find"
    )


def test_only_the_yaml_files_of_the_config_tree_are_unpacked(publish, pinned, tmp_path):
    pinned(publish(TREE))
    folder = tree("0.9.0", quiet)
    assert folder == tmp_path / "cache/upstream/verl-0.9.0/verl/trainer/config"
    assert files_below(tmp_path / "cache/upstream") == [
        "verl-0.9.0/verl/trainer/config/actor/actor.yaml",
        "verl-0.9.0/verl/trainer/config/ppo_trainer.yaml",
    ]


def test_a_member_that_leads_out_of_the_folder_is_refused(publish, pinned, tmp_path):
    pinned(publish({**TREE, "verl/trainer/config/../../../../escaped.yaml": "c: 3\n"}))
    with pytest.raises(Refused, match="leads out of the folder"):
        tree("0.9.0", quiet)
    assert files_below(tmp_path / "cache/upstream") == []


def test_an_edited_tree_is_refused(publish, pinned):
    pinned(publish(TREE))
    folder = tree("0.9.0", quiet)
    (folder / "ppo_trainer.yaml").write_text("a: 2\n", encoding="utf-8")
    with pytest.raises(Refused, match=f"expected {TREE_SHA256}"):
        tree("0.9.0", quiet)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("MINIVERL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert upstream.cache_dir() == tmp_path / "miniverl"
    monkeypatch.setenv("MINIVERL_CACHE", str(tmp_path / "mine"))
    assert upstream.cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("MINIVERL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert upstream.cache_dir() == tmp_path / ".cache" / "miniverl"
