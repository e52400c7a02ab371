"""make gpu-check: what is carried is enough where nothing of ours is installed, shown with those packages shut out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# A foreign stack has torch and transformers, and none of these.
SHUT_OUT = ("hydra", "omegaconf", "jsonschema", "pyarrow")
RUN = f"""
import runpy, sys
class Shut:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SHUT_OUT!r}:
            raise ModuleNotFoundError(f"{{name}} is shut out")
sys.meta_path.insert(0, Shut())
sys.path.insert(0, "tests/gpu")
sys.path[:0] = sys.argv.pop(1).split(":")
import checks, measured, seeded
import miniverl.bench.worker, miniverl.bench.sampler
from miniverl.engine import determinism, loop
import rfc8785, pynvml, ruamel.yaml
from pathlib import Path
carry, out = map(Path, sys.argv[1:])
found = checks.quantised(carry=carry, out=out, device="cpu")
bound = seeded.carried("tiny-opd-k1", "float32", carry, out)
loaded = loop.load_inputs(bound.recipe, loop.Inputs.of(bound.recipe, bound.paths))
import json
print(json.dumps([found["passes"], found["told"], len(loaded.prompts), rfc8785.__file__]))
"""


def test_what_is_carried_is_enough_without_our_packages(tmp_path: Path) -> None:
    carry, out = tmp_path / "carry", tmp_path / "out"
    pack = "import sys; sys.path.insert(0, 'tests/gpu'); import carry; from pathlib import Path; "
    pack += "carry.pack(Path(sys.argv[1]), ('tiny-opd-k1',))"
    subprocess.run([sys.executable, "-c", pack, str(carry)], cwd=ROOT, check=True)
    names = out / "names" / "miniverl"
    names.mkdir(parents=True)
    for top in ("engine", "compiler", "bench"):
        (names / top).symlink_to(ROOT / top)
    path = f"{names.parent}:{carry / 'packages'}"
    answer = subprocess.run(
        [sys.executable, "-c", RUN, path, str(carry), str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    passes, told, prompts, package = json.loads(answer.stdout)
    assert passes, told
    assert prompts == 64
    assert package.startswith(str(carry))


def test_a_part_that_there_is_none_of_is_told(tmp_path: Path) -> None:
    call = [sys.executable, "tests/gpu/gpu_check.py", "--carry", str(tmp_path / "carry")]
    call += ["--out", str(tmp_path / "out"), "--device", "cuda", "nf5"]
    answer = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "no such part: nf5; known: decoder, nf4" in answer.stderr
