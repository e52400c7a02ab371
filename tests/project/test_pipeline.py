"""The real dvc.yaml in DVC's hands, with a stand-in for the `miniverl` command that takes no time.

Each test starts from a work tree in which the pipeline has run once. DVC keeps no promise about
inputs, restores old results and deletes outputs before a command runs: what holds against that is
tested here. Only the stand-in can be a machine with another driver, a measurement that breaks off, or
one that waits. The same stages with the real command, from fetching to the pages, are run twice by
`make repro` in .ci/run, in a clean clone with an empty cache; the report stage has it here too.
"""

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from miniverl.compiler.whole import write_json

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
AS = ("-c", "user.name=a", "-c", "user.email=a@b")
DVC = (sys.executable, "-m", "dvc")
RECORD = Path("build/dvc/records/smollm2-grpo.json")
PARTS = (
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvc/plots.html",
    ".dvcignore",
    ".gitignore",
    "dvc.yaml",
    "params.yaml",
)

# Writes what the real command writes, where it is told to; FAIL names a command that exits CODE.
MINIVERL = """#!/bin/sh
echo "$@" >>"$CALLS"
write() { mkdir -p "$(dirname "$1")" && cat >"$1"; }
case $1 in
  fetch) echo pinned ;;
  compile) echo recipe | write "$4"; echo report | write "$6" ;;
  doctor) echo "driver $DRIVER" | write "$3" ;;
  bench) while [ -n "$WAIT" ] && [ ! -e "$WAIT" ]; do sleep 0.05; done
    echo "driver $DRIVER, $(wc -l <"$CALLS") calls, exit ${CODE:-0}" | write "$4" ;;
  check) grep -v 'exit [13]' "$2" || exit 1 ;;
  site) echo page | write "$3/index.html"; echo '{}' | write "$5/metrics.json"; echo '[]' | write "$5/steps.json" ;;
esac
[ "$1" = "$FAIL" ] && exit "$CODE"
exit 0
"""


class Tree:
    """A work tree, and how to run its pipeline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def repro(
        self, *targets: str, driver: str = "1", fail: str = "", code: str = "0"
    ) -> tuple[int, list[str]]:
        """DVC's exit code, and the miniverl commands that it ran."""
        stand_in = {"DRIVER": driver, "FAIL": fail, "CODE": code}
        done = self.dvc("repro", *targets, **stand_in)
        return done.returncode, self.calls()

    def dvc(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(*DVC, *arguments, **self.forget_calls(), **variables)

    def forget_calls(self) -> dict[str, str]:
        """Where the stand-in writes down those that come."""
        calls = self.folder / "build" / "calls"
        calls.parent.mkdir(exist_ok=True)
        calls.write_text("")
        return {"CALLS": str(calls)}

    def calls(self) -> list[str]:
        text = (self.folder / "build" / "calls").read_text()
        return [line.split()[0] for line in text.splitlines()]

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=self.environment() | variables,
            capture_output=True,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        home = self.folder.parent / "home"
        environment = os.environ | {"HOME": str(home), "DVC_SITE_CACHE_DIR": str(home / "site")}
        environment["PATH"] = f"{self.folder.parent / 'bin'}:{environment['PATH']}"
        return environment

    def record(self) -> str:
        return (self.folder / RECORD).read_text()


@pytest.fixture
def example() -> ModuleType:
    """tests/bench/example.py; test files cannot import each other."""
    spec = importlib.util.spec_from_file_location(
        "pipeline_example", ROOT / "tests" / "bench" / "example.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree(tmp_path_factory.mktemp("pipeline") / "tree")
    for part in PARTS:
        (tree.folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / part, tree.folder / part)
    for top in ("bench", "compiler", "engine"):
        shutil.copytree(ROOT / top, tree.folder / top)
    stand_in = tree.folder.parent / "bin" / "miniverl"
    stand_in.parent.mkdir()
    stand_in.write_text(MINIVERL)
    stand_in.chmod(0o755)
    tree.run("git", "init", "--quiet")
    tree.run("git", "add", "--all")
    code, commands = tree.repro()
    assert code == 0
    assert commands == ["fetch", "fetch", "compile", "doctor", "bench", "check", "site"]
    return tree


@pytest.fixture
def tree(ran_once: Tree, tmp_path: Path) -> Tree:
    """A copy for one test; the stand-in command and the home folder come along."""
    shutil.copytree(ran_once.folder.parent, tmp_path / "copy", symlinks=True)
    return Tree(tmp_path / "copy" / "tree")


def test_the_second_run_repeats_only_the_probe(tree: Tree) -> None:
    assert tree.repro() == (0, ["doctor"])


def test_the_pipeline_leaves_git_nothing_to_say(tree: Tree) -> None:
    unstaged = tree.run("git", "status", "--porcelain").stdout.splitlines()
    assert [line for line in unstaged if not line.startswith("A ")] == ["?? dvc.lock"]


def test_a_clone_without_a_remote_measures_everything_once(tree: Tree, tmp_path: Path) -> None:
    tree.run("git", "add", "dvc.lock")
    tree.run("git", *AS, "commit", "--quiet", "--message", "with dvc.lock")
    clone = Tree(tmp_path / "copy" / "clone")
    tree.run("git", "clone", "--quiet", str(tree.folder), str(clone.folder))

    everything = ["fetch", "fetch", "compile", "doctor", "bench", "check", "site"]
    # A dry run in a clone lacks every input that a stage would make.
    assert clone.dvc("repro", "--dry", "--allow-missing").returncode == 0
    assert clone.calls() == []
    assert clone.repro() == (0, everything)
    assert clone.repro() == (0, ["doctor"])


def test_a_machine_that_cannot_run_it_is_judged_by_the_gate(tree: Tree) -> None:
    assert tree.repro(driver="2", fail="bench", code="3")[1] == ["doctor", "bench", "check"]


def test_metrics_and_plots_of_two_commits_are_told_without_a_network(
    tree: Tree, example: ModuleType, tmp_path: Path
) -> None:
    """The report stage as it stands, with the real command and two valid records."""
    (tree.folder.parent / "bin" / "miniverl").unlink()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for slowness in (1.0, 2.0):
        run = (example.Plan(slowness=slowness),)
        write_json(tree.folder / RECORD, example.measured(tmp_path / str(slowness), run))
        done = tree.run(*DVC, "repro", "-f", "-s", "report", PATH=path)
        assert done.returncode == 0, done.stderr
        if slowness == 1.0:
            tree.run("git", "add", "--all")
            tree.run("git", *AS, "commit", "--quiet", "--message", "before")

    told = tree.run(*DVC, "metrics", "diff", "--json")
    (changes,) = json.loads(told.stdout).values()
    update = changes["smollm2-grpo.steady_state_median_seconds.actor_update"]
    assert (update["old"], update["new"], update["diff"]) == (5.0, 10.0, 5.0)

    drawn = tree.run(*DVC, "plots", "diff", "-o", str(tmp_path / "plots"))
    assert drawn.returncode == 0, drawn.stderr
    page = (tmp_path / "plots" / "index.html").read_text("utf-8")
    assert "smollm2-grpo, launch 1" in page
    assert re.findall(r"""(?:src|href)\s*=\s*["']""", page) == []


def test_an_earlier_driver_that_returns_is_measured_anew(tree: Tree) -> None:
    first = tree.record()
    measured = ["doctor", "bench", "check", "site"]
    assert tree.repro(driver="2") == (0, measured)
    assert tree.record().startswith("driver 2,")
    assert tree.repro(driver="1") == (0, measured)
    assert tree.record().startswith("driver 1,")
    assert tree.record() != first


def test_a_failed_measurement_is_kept_and_stops_at_the_gate(tree: Tree) -> None:
    code, commands = tree.repro(driver="2", fail="bench", code="1")
    assert (code, commands) == (255, ["doctor", "bench", "check"])
    assert tree.record().endswith("exit 1\n")


def test_a_broken_off_measurement_leaves_the_former_record_and_is_repeated(tree: Tree) -> None:
    former = tree.record()
    assert tree.repro(driver="2", fail="bench", code="130") == (255, ["doctor", "bench"])
    assert tree.record() == former
    assert tree.repro(driver="2") == (0, ["doctor", "bench", "check", "site"])


def test_an_input_that_fails_its_pin_stops_everything(tree: Tree) -> None:
    (tree.folder / "bench" / "pins" / "changed.yaml").write_text("changed: true\n")
    code, commands = tree.repro(fail="fetch", code="3")
    assert (code, commands) == (255, ["fetch"])


def test_one_workload_is_named_by_its_stage(tree: Tree) -> None:
    """What the gate of one takes, and nothing behind it."""
    params = tree.folder / "params.yaml"
    params.write_text(params.read_text() + "  - tiny-grpo\n")

    assert tree.repro("--glob", "gate@tiny-*") == (0, ["compile", "doctor", "bench", "check"])
    assert (tree.folder / RECORD).with_name("tiny-grpo.json").exists()


def test_a_second_pipeline_beside_a_running_one_is_refused_and_disturbs_nothing(
    tree: Tree, tmp_path: Path
) -> None:
    """A card is measured by one at a time."""
    go_on = tmp_path / "go on"
    variables = tree.environment() | tree.forget_calls() | {"DRIVER": "2", "WAIT": str(go_on)}
    first = subprocess.Popen(
        [*DVC, "repro"], cwd=tree.folder, env=variables, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while "bench" not in tree.calls() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = tree.run(*DVC, "repro", "--force", CALLS=os.devnull, DRIVER="3")
    go_on.touch()
    first.communicate()

    assert second.returncode == 255
    assert "is busy, it is being blocked by" in second.stderr
    assert first.returncode == 0
    assert tree.record().startswith("driver 2,")


def test_without_git_the_pipeline_runs_as_make_has_it(tree: Tree) -> None:
    """As in an exported tree or an image."""
    shutil.rmtree(tree.folder / ".git")
    (setting,) = re.findall(r"test -e \.git \|\| \S+dvc (.*)", (ROOT / "Makefile").read_text())
    assert tree.run(*DVC, *setting.split()).returncode == 0

    assert tree.repro(driver="2") == (0, ["doctor", "bench", "check", "site"])


def test_the_pipeline_stays_clear_of_what_dvc_is_known_to_do() -> None:
    """docs/adr/0001. Stages cost time even where nothing is done; a hash of gigabytes more."""
    pipeline = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    assert [
        path.parent for path in ROOT.glob("*/dvc.yaml")
    ] == []  # `dvc repro` sees the root's alone
    assert len(pipeline) < 20
    text = (ROOT / "dvc.yaml").read_text()
    assert set(re.findall(r"\$\{(.*?)\}", text)) == {"item", "workloads"}  # no variables of a shell
    assert not re.search(r"[\[{,]\s*\$\{", text)  # nor a template within [] or {}, unquoted
    assert "import-url" not in text
    assert pipeline["probe"]["always_changed"]

    settings = configparser.ConfigParser()
    settings.read(ROOT / ".dvc" / "config")
    assert {
        name: settings["core"][name] for name in ("analytics", "check_update", "autostage")
    } == (dict.fromkeys(("analytics", "check_update", "autostage"), "false"))
    assert not settings.has_option("cache", "type")  # links make outputs read-only
    assert "dvc.lock" not in (ROOT / ".gitignore").read_text()  # an ignored one stops every command
