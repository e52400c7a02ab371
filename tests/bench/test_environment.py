"""What a record says of machine and software: complete, stable, and nothing that names anybody."""

import json
import os
import platform
import subprocess
from pathlib import Path

import jsonschema
import pytest

from miniverl.bench import environment as env
from miniverl.bench.gpu import Card, Found
from miniverl.bench.nvml import Status
from miniverl.bench.stack import Stack

STACK = Stack(name="cpu", lock_sha256="ab" * 32, matches=True, differences=())
CARD = Card(
    index=0,
    name="NVIDIA GeForce RTX 4080",
    memory_bytes=17_171_480_576,
    uuid_sha256="cd" * 32,
    facts={"ecc_mode": Status.NOT_SUPPORTED, "power_limit_watts": 320.0},
)
FOUND = Found(
    cards=(CARD,), driver="596.49", driver_cuda="13.1", torch="2.13.0+cu130", why_none=None
)
NOTHING = Found(cards=(), driver=None, driver_cuda=None, torch="2.13.0+cpu", why_none="none")


@pytest.fixture(scope="module")
def schema() -> dict[str, object]:
    path = Path(__file__).parents[2] / "bench" / "schemas" / "record-v2.json"
    read: dict[str, object] = json.loads(path.read_text())
    return read


def _validate(block: str, value: object, schema: dict[str, object]) -> None:
    """Against one block of the record's schema."""
    jsonschema.validate(
        value, {"$ref": f"#/properties/{block}", **{k: schema[k] for k in ("properties", "$defs")}}
    )


def test_the_software_block_is_a_records(schema: dict[str, object]) -> None:
    block = env.environment(STACK, 2, os.environ)
    _validate("environment", block, schema)
    assert block["python"] == platform.python_version()
    assert (block["threads"], block["stack"], block["stack_matches_lock"]) == (2, "cpu", True)
    assert "torch" in block["packages"]


def test_a_cpu_run_has_no_card_and_says_so(schema: dict[str, object]) -> None:
    block = env.hardware("cpu", None, NOTHING)
    _validate("hardware", block, schema)
    assert (block["gpu"], block["gpu_count"], block["driver"]) == (None, 0, None)
    assert block["vram_gib"] == {"status": "not_supported"}
    assert block["cpu_count"] == len(os.sched_getaffinity(0))


def test_a_cuda_run_names_card_driver_and_runtime(schema: dict[str, object]) -> None:
    block = env.hardware("cuda", CARD, FOUND)
    _validate("hardware", block, schema)
    assert (block["gpu"], block["gpu_count"]) == ("NVIDIA GeForce RTX 4080", 1)
    assert (block["vram_gib"], block["driver"], block["cuda_runtime"]) == (15.992, "596.49", "13.0")
    assert block["details"]["ecc_mode"] == "not_supported"


def test_only_variables_that_change_numbers_are_recorded() -> None:
    variables = {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "HOME": "/home/somebody",
        "HF_TOKEN": "hf_secret",
        "NVIDIA_API_KEY": "secret",
        "TORCH_HUB_TOKEN": "secret",
    }
    assert env.allowed(variables) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


def test_of_a_path_only_the_last_part_is_recorded() -> None:
    variables = {
        "LD_PRELOAD": "/home/somebody/lib/libjemalloc.so.2:/opt/libfoo.so",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert env.allowed(variables) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "LD_PRELOAD": "libjemalloc.so.2:libfoo.so",
    }


def test_a_launcher_tells_which_image_this_is() -> None:
    variables = {"MINIVERL_IMAGE": "miniverl-cuda", "MINIVERL_IMAGE_DIGEST": "sha256:ab"}
    assert env.container(variables) == {
        "image": "miniverl-cuda",
        "digest": "sha256:ab",
        "evidence": "launcher",
    }


def test_an_image_without_its_launcher_knows_its_name_alone() -> None:
    assert env.container({"MINIVERL_IMAGE": "miniverl:cpu"}) == {
        "image": "miniverl:cpu",
        "digest": None,
        "evidence": "label",
    }


def test_the_fingerprint_is_the_same_a_moment_later() -> None:
    one = env.fingerprint(STACK, FOUND, {"OMP_NUM_THREADS": "2"})
    two = env.fingerprint(STACK, FOUND, {"OMP_NUM_THREADS": "2"})
    assert json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)


@pytest.mark.parametrize(
    "other",
    [
        Found(
            cards=(CARD,), driver="600.00", driver_cuda="13.1", torch="2.13.0+cu130", why_none=None
        ),
        Found(
            cards=(CARD,), driver="596.49", driver_cuda="13.1", torch="2.13.0+cu128", why_none=None
        ),
        NOTHING,
    ],
    ids=["driver", "cuda", "card"],
)
def test_the_fingerprint_changes_with_driver_cuda_and_card(other: Found) -> None:
    assert env.fingerprint(STACK, other, {}) != env.fingerprint(STACK, FOUND, {})


def test_what_measuring_writes_does_not_make_the_checkout_dirty(tmp_path: Path) -> None:
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for name in ("results/one.json", "dvc.lock", "engine/loop.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    assert env.checkout_at(tmp_path).is_dirty is False
    assert env.checkout_at(tmp_path / "engine").commit is None

    (tmp_path / "results" / "one.json").write_text("after")
    (tmp_path / "results" / "new.json").write_text("new")
    (tmp_path / "dvc.lock").write_text("after")
    assert env.checkout_at(tmp_path).is_dirty is False
    (tmp_path / "engine" / "loop.py").write_text("after")
    assert env.checkout_at(tmp_path).is_dirty is True


def test_the_checkout_is_named_by_commit() -> None:
    root = Path(__file__).parents[2]
    commit = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    found = env.checkout()
    assert found.commit == commit.stdout.strip()
    assert found.is_dirty is not None


def test_nothing_recorded_names_this_machine() -> None:
    recorded = json.dumps(env.fingerprint(STACK, FOUND, os.environ))
    assert platform.node() not in recorded
    assert str(Path.home()) not in recorded
    assert str(Path(__file__).parents[2]) not in recorded
