"""Images: written from one place, from bases with a digest, and launched by an engine that notes what it is asked."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from dockerfile_parse import DockerfileParser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
STACKS = ("cpu", "cu126", "cu128", "cu130")
DIGEST = "sha256:" + "ab" * 32
CANNOT_HERE = 3


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of containers/ import each other by name."""
    monkeypatch.syspath_prepend(str(CONTAINERS))


@pytest.fixture
def recipes(scripts: None) -> ModuleType:
    import recipes

    return recipes


@pytest.fixture
def pinned(scripts: None) -> ModuleType:
    import pinned

    return pinned


@pytest.mark.parametrize("stack", STACKS)
def test_the_files_of_a_stack_are_as_they_are_written(recipes: ModuleType, stack: str) -> None:
    base, of_stack = recipes.base(), recipes.stack_of(stack)
    folder = CONTAINERS / stack
    assert (folder / "Containerfile").read_text() == recipes.containerfile(base, of_stack)
    assert (folder / "miniverl.def").read_text() == recipes.definition(base, of_stack)


@pytest.mark.parametrize("stack", STACKS)
def test_both_files_start_from_one_digest_and_install_one_lock(stack: str) -> None:
    texts = [(CONTAINERS / stack / name).read_text() for name in ("Containerfile", "miniverl.def")]
    for pattern in (
        r"[Ff](?:ROM|rom:) \S+?@(sha256:\w{64})",
        r'base\.digest[= ]"?(sha256:\w{64})',
        r'echo "(\w{64}  \S+)" \| sha256sum -c',
        r'miniverl\.lock\.sha256[= ]"?(\w{64})',
        r'NVIDIA_VISIBLE_DEVICES="(\w+)"',
        r"MINIVERL_STACK=(\w+)",
    ):
        found = [set(re.findall(pattern, text)) for text in texts]
        assert len(found[0]) == 1, pattern
        assert found[0] == found[1], pattern


@pytest.mark.parametrize("stack", STACKS)
def test_an_image_says_what_it_is_and_runs_without_rights(stack: str) -> None:
    text = (CONTAINERS / stack / "Containerfile").read_text()
    assert 'org.opencontainers.image.revision="$REVISION"' in text
    assert "\nUSER 10001:10001\n" in text
    cards = "void" if stack == "cpu" else "all"
    assert f'NVIDIA_VISIBLE_DEVICES="{cards}"' in text
    assert ('NVIDIA_DRIVER_CAPABILITIES="compute,utility"' in text) == (stack != "cpu")


def test_hadolint_finds_nothing() -> None:
    files = [str(CONTAINERS / stack / "Containerfile") for stack in STACKS]
    hadolint = str(Path(sys.executable).with_name("hadolint"))
    done = subprocess.run([hadolint, *files], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"FROM python:3.11@{DIGEST}\n", []),
        ("FROM python:3.11\n", ["python:3.11"]),
        ("FROM --platform=linux/amd64 python AS one\nFROM one\n", ["python"]),
        (f"FROM python@{DIGEST} AS one\nCOPY --from=one /a /b\nCOPY --from=0 /a /b\n", []),
        (f"FROM python@{DIGEST}\nCOPY --link --from=busybox:1 /a /b\n", ["busybox:1"]),
        (f"FROM python@{DIGEST}\nRUN --mount=type=bind,from=alpine,target=/a true\n", ["alpine"]),
        ("ARG D\nFROM python@${D}\n", ["python@${D}"]),
        (f"ARG I\nFROM $I@{DIGEST}\n", [f"$I@{DIGEST}"]),
        (f"# syntax=docker/dockerfile:1\nFROM python@{DIGEST}\n", ["docker/dockerfile:1"]),
        (f"FROM \\\n  # why\n  python:3\n# FROM other\nFROM python@{DIGEST}\n", ["python:3"]),
        (f"from python@{DIGEST[:-1]}\n", [f"python@{DIGEST[:-1]}"]),
        ("FROM scratch\n", []),
    ],
)
def test_a_base_without_a_digest_is_found(
    pinned: ModuleType, tmp_path: Path, text: str, found: list[str]
) -> None:
    file = tmp_path / "Containerfile"
    file.write_text(text)
    assert pinned.unpinned(file) == found


@pytest.mark.parametrize("stack", STACKS)
def test_a_parser_of_others_finds_a_digest_at_every_base(stack: str) -> None:
    with (CONTAINERS / stack / "Containerfile").open("rb") as file:
        parents = DockerfileParser(fileobj=file).parent_images
    assert parents
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", each) for each in parents)


def test_a_definition_without_a_digest_is_found(pinned: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "miniverl.def"
    file.write_text("Bootstrap: docker\nFrom: python:3.11\n\nBootstrap: docker\nFROM: one@latest\n")
    assert pinned.unpinned(file) == ["python:3.11", "one@latest"]


# An engine that notes what it is asked for. An image is there once it has been built.
ENGINE = f"""#!{sys.executable}
import json, os, sys
arguments, folder = sys.argv[1:], os.environ["NOTES"]
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
image = os.path.join(folder, "image")
if arguments[0] == "build":
    open(image, "w").close()
if "inspect" in arguments:
    print("{DIGEST}") if os.path.exists(image) else sys.exit(1)
if arguments[0] == "run":
    sys.exit(3)
"""


class Checkout:
    """A checkout of its own with an engine of its own as the only program beside Python."""

    def __init__(self, root: Path, engine: str) -> None:
        self.root, self._bin = root, root / "bin"
        shutil.copytree(
            CONTAINERS, root / "containers", ignore=shutil.ignore_patterns("__pycache__")
        )
        self._bin.mkdir()
        (self._bin / engine).write_text(ENGINE)
        (self._bin / engine).chmod(0o755)

    def run(
        self, script: str, *arguments: str, runtime: str = ""
    ) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self._bin), "NOTES": str(self.root), "RUNTIME": runtime}
        variables["MINIVERL_CACHE"] = str(self.root / "cache")
        command = [sys.executable, str(self.root / "containers" / script), *arguments]
        return subprocess.run(command, check=False, env=variables, capture_output=True, text=True)

    def calls(self) -> list[list[str]]:
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_is_built_once_and_told_its_digest(tmp_path: Path, engine: str) -> None:
    checkout = Checkout(tmp_path, engine)
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "git")
    for _ in range(2):
        assert checkout.run("launch.py", "cu130", "bench", "--gpu", "4080").returncode == 3
    calls = checkout.calls()
    (built,) = [call for call in calls if call[0] == "build"]
    assert str(tmp_path / "containers" / "cu130" / "Containerfile") in built
    run, _ = [call for call in calls if call[0] == "run"]
    assert f"--env=MINIVERL_IMAGE_DIGEST={DIGEST}" in run
    assert "--env=MINIVERL_IMAGE=miniverl:cu130" in run
    assert f"--volume={tmp_path / 'build'}:/opt/miniverl/build" in run
    assert f"--user={os.getuid()}:{os.getgid()}" in run
    assert run[-4:] == ["miniverl:cu130", "bench", "--gpu", "4080"]


def test_a_base_without_a_digest_is_not_built(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "docker")
    file = tmp_path / "containers" / "cpu" / "Containerfile"
    file.write_text(re.sub(r"@sha256:\w+", "", file.read_text(), count=1))
    done = checkout.run("image.py", "cpu")
    assert done.returncode == CANNOT_HERE
    assert done.stderr == "Containerfile takes python:3.11-slim-bookworm without a digest.\n"
    assert all(call[0] != "build" for call in checkout.calls())


def test_an_edited_file_is_not_built(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "docker")
    with (tmp_path / "containers" / "cpu" / "Containerfile").open("a") as file:
        file.write("RUN true\n")
    done = checkout.run("image.py", "cpu")
    assert done.returncode == CANNOT_HERE
    assert "is not as it is written" in done.stderr


def test_without_an_engine_there_is_no_image_and_a_sentence(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "something-else")
    done = checkout.run("image.py", "cpu")
    assert done.returncode == CANNOT_HERE
    assert "make bench STACK=cpu RUNTIME=venv" in done.stderr


def test_an_engine_that_is_asked_for_has_to_be_there(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "docker")
    done = checkout.run("launch.py", "cpu", "bench", runtime="podman")
    assert (done.returncode, done.stderr) == (
        CANNOT_HERE,
        "RUNTIME=podman: it is not installed. RUNTIME=venv needs no engine.\n",
    )


def test_a_new_digest_is_pinned_in_every_file(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "skopeo")
    (tmp_path / "image").touch()
    done = checkout.run("pin_images.py")
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == [
        ["inspect", "--format", "{{.Digest}}", "docker://python:3.11-slim-bookworm"]
    ]
    files = [path for path in (tmp_path / "containers").glob("*/*") if path.name != "stack.toml"]
    written = [file for file in files if file.name in ("Containerfile", "miniverl.def")]
    assert len(written) == 2 * len(STACKS)
    assert all(f"@{DIGEST}" in file.read_text() for file in written)


def test_without_an_answer_the_pin_stays(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "skopeo")
    before = (tmp_path / "containers" / "base.toml").read_text()
    done = checkout.run("pin_images.py")
    assert done.returncode == CANNOT_HERE
    assert done.stderr.startswith("Nobody could be asked for python:3.11-slim-bookworm")
    assert (tmp_path / "containers" / "base.toml").read_text() == before


@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed")
def test_equal_inputs_give_an_equal_digest(tmp_path: Path, recipes: ModuleType) -> None:
    """The CPU stack's file without its RUNs, on nothing: what is copied, and what is set, builds twice the same.

    `make image-check` builds all of it.
    """
    for name in ("bench", "compiler", "engine", "containers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "secret").touch()
    text = (CONTAINERS / "cpu" / "Containerfile").read_text()
    text = re.sub(r"^RUN (.*\\\n)*.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^FROM .*", "FROM scratch", text, flags=re.MULTILINE)
    file = tmp_path / "containers" / "cpu" / "Containerfile"
    file.write_text(text)
    buildah = ["buildah", "--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "runroot")]
    found = []
    for number in range(2):
        tag = f"small:{number}"
        build = [
            *buildah,
            "build",
            "--no-cache",
            "--isolation",
            "chroot",
            "--timestamp",
            "315532800",
        ]
        build += ["--file", str(file), "--tag", tag, "--build-arg", "REVISION=abc", str(tmp_path)]
        subprocess.run(build, check=True, capture_output=True)
        asks = [*buildah, "inspect", "--type", "image", tag]
        answer = subprocess.run(asks, check=True, capture_output=True, text=True)
        found.append(json.loads(answer.stdout))
    assert found[0]["FromImageDigest"] == found[1]["FromImageDigest"]
    labels = found[0]["OCIv1"]["config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == "abc"
    assert labels["miniverl.lock.sha256"] == recipes.stack_of("cpu").lock_sha256
    files = [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert "install.py" in files
    assert "secret" not in files
