"""The product from its wheel alone, as a stranger has it: built, installed, and run in an empty folder.

    python tests/project/wheel_check.py [WORKLOAD ...]

The wheel is built from the source archive, and that from what is committed. pip takes the newest packages that it
allows, not those of a lock. Each workload is measured, killed and resumed; its run is handed over, and the bundle
checked. It ends with 1 at the first command that does.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ("smollm2-grpo", "smollm2-ppo")


def main(workloads: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="miniverl-wheel-") as made:
        folder = Path(made)
        miniverl = str(installed(folder) / "bin" / "miniverl")
        away = folder / "away"
        away.mkdir()
        run([miniverl, "doctor"], away)
        run([miniverl, "corpus", "--check"], away)
        run([miniverl, "bench", *workloads], away)
        records = sorted(away.glob("build/bench/*/*/*/record.json"))
        assert len(records) == len(workloads), records
        run([miniverl, "check", *map(str, records)], away)
        for record in records:
            bundle = away / "bundle" / record.parents[2].name
            run([miniverl, "handoff", str(record.parent / "straight"), "--out", str(bundle)], away)
            run([miniverl, "handoff", "--check", str(bundle)], away)
    print(f"The wheel alone ran {', '.join(workloads)}.")


def installed(folder: Path) -> Path:
    """A new environment that holds the wheel and what pip adds to it."""
    source, environment = folder / "source", folder / "venv"
    source.mkdir()
    archive = folder / "committed.tar"
    run(["git", "archive", "--output", str(archive), "HEAD"], ROOT)
    run(["tar", "-xf", str(archive), "-C", str(source)], folder)
    uv = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--no-build-isolation"]
    run([*uv, "--python", sys.executable, "--out-dir", "dist", str(source)], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[run]"], folder)
    found = run([python, "-P", "-c", "import miniverl.engine as e; print(e.__file__)"], folder)
    assert found.startswith(str(environment)), found
    return environment


def run(command: list[str], where: Path) -> str:
    """What it prints; what it tells people goes to the terminal."""
    print("$", *command, file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=where, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:] or list(DEFAULT))
