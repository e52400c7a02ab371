"""On the foreign machine: the models of the carried shapes, and how a carried recipe is bound to them."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miniverl.bench.seeded_weights import write_weights
from miniverl.compiler.upstream import quiet
from miniverl.compiler.whole import json_text
from miniverl.engine import recipe as recipes
from miniverl.engine.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """A compiled workload; `paths` are those of its inputs here."""

    name: str
    recipe: Recipe
    stated: dict[str, Any]  # contract, models, steps
    paths: dict[str, Path]


def carried(name: str, dtype: str, carry: Path, out: Path) -> Carried:
    """The workload of that name, its models made where they are missing."""
    place = carry / "recipes" / name
    recipe_path = place / dtype / "recipe.json"
    stated = json.loads((place / "workload.json").read_text("utf-8"))
    models = {role: model(pin, carry, out) for role, pin in stated["models"].items()}
    return Carried(
        name=name,
        recipe=recipes.loads(recipe_path.read_text("utf-8"), recipe_path.name),
        stated=stated,
        paths={**models, "train": (carry / "rows" / stated["rows"]).resolve()},
    )


def model(name: str, carry: Path, out: Path) -> Path:
    """The folder of a shape with its seeded weights."""
    folder = out / "models" / name
    whole = folder / "model.safetensors"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stated = json.loads((carry / "shapes" / f"{name}.json").read_text("utf-8"))
        for file in (carry / "tokenizer").iterdir():
            shutil.copyfile(file, folder / file.name)
        (folder / "config.json").write_text(json_text(stated["config"]), "utf-8")
        unfinished = whole.with_suffix(".part")
        write_weights(unfinished, stated["config"], stated["seed"], quiet, stated["title"])
        unfinished.rename(whole)
    return folder.resolve()
