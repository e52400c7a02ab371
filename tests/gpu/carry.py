"""What has to be carried to a foreign machine: compiled recipes, shapes, a tokenizer, rows, and packages of pure Python.

    recipes/NAME/DTYPE/recipe.json, report.json    shapes/NAME.json    tokenizer/    rows/    packages/

Weights are not carried: bench/seeded_weights.py makes them there, byte for byte, and the engine refuses other ones.
"""

import importlib.util
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from miniverl.bench import fetch, shape
from miniverl.bench.compiling import compile_workload
from miniverl.bench.disk import folder_bytes
from miniverl.bench.pin import ShapePin, TemplatedPin, pin
from miniverl.bench.workload import Workload, workload
from miniverl.compiler.upstream import quiet
from miniverl.compiler.whole import json_text, write_json, write_text
from miniverl.engine import recipe as recipes
from miniverl.engine.recipe import Dtype

WORKLOADS = (
    "tiny-opd-k1",
    "tiny-grpo-nf4",
    "qwen3-0.6b-opd-k1-shape",
    "qwen3-0.6b-grpo-shape",
)
DTYPES: dict[str, Dtype] = {"cpu": "float32", "cuda": "bfloat16"}
LARGEST_MIB = 64
_PACKAGES = ("rfc8785", "pynvml", "ruamel.yaml")  # of pure Python, and small


def pack(folder: Path, names: tuple[str, ...] = WORKLOADS) -> None:
    """Fill `folder`, which is new."""
    folder.mkdir(parents=True)
    for name in names:
        _pack_workload(workload(name), folder)
    for package in _PACKAGES:
        _pack_package(package, folder / "packages")
    mib = folder_bytes(folder) / 2**20
    assert mib <= LARGEST_MIB, f"{mib:.1f} MiB are too many to carry"
    print(f"{folder}: {mib:.1f} MiB")


def _pack_workload(chosen: Workload, folder: Path) -> None:
    for dtype in dict.fromkeys(DTYPES.values()):
        compiled = compile_workload(chosen, None, (), dtype, quiet)
        assert compiled.recipe is not None, compiled.execution
        place = folder / "recipes" / chosen.name / dtype
        place.mkdir(parents=True)
        write_text(place / "recipe.json", recipes.dumps(compiled.recipe))
        write_json(place / "report.json", compiled.report)
    (folder / "shapes").mkdir(exist_ok=True)
    for name in chosen.bindings.models.values():
        made = pin(name)
        assert isinstance(made, ShapePin), f"{name} has weights that nobody can make there"
        stated = {"config": made.config, "seed": made.seed, "title": made.title}
        (folder / "shapes" / f"{name}.json").write_text(json.dumps(stated), "utf-8")
        places = fetch.fetch([made.tokenizer], quiet)
        for file in shape.TOKENIZER:
            (folder / "tokenizer").mkdir(exist_ok=True)
            shutil.copyfile(places[made.tokenizer] / file, folder / "tokenizer" / file)
    rows = pin(chosen.bindings.train.partition("/")[0])
    assert isinstance(rows, TemplatedPin), "rows of one split lie in one file"
    (folder / "rows").mkdir(exist_ok=True)
    source = Path(shape.__file__).with_name("data") / rows.file
    shutil.copyfile(source, folder / "rows" / rows.file)
    contract = json_text(asdict(chosen.contract) | {"models": dict(chosen.bindings.models)})
    told = json.loads(contract) | {
        "rows": rows.file,
        "interrupt_after_update": chosen.interrupt_after_update,
        "warmup_steps": chosen.warmup_steps,
    }
    write_json(folder / "recipes" / chosen.name / "workload.json", told)


def _pack_package(name: str, folder: Path) -> None:
    found = importlib.util.find_spec(name)
    assert found is not None, f"{name} is not installed here"
    assert found.origin is not None
    origin = Path(found.origin)
    target = folder.joinpath(*name.split("."))
    target.parent.mkdir(parents=True, exist_ok=True)
    if found.submodule_search_locations is None:
        shutil.copyfile(origin, target.with_suffix(".py"))
    else:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyi")
        shutil.copytree(origin.parent, target, ignore=ignored)
