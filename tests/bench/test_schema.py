"""Generated JSON Schemas: as committed, and true of the files that they are of."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from miniverl.bench import schema
from miniverl.bench.cli import main
from miniverl.compiler import source as sources
from miniverl.compiler.leaf import nested

pytestmark = pytest.mark.slow

SCHEMAS = files("miniverl.bench") / "schemas"
WORKLOADS = files("miniverl.bench") / "workloads"


def committed(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"))


def problems(name: str, document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(committed(name)).iter_errors(document)]


def test_the_committed_schemas_are_those_of_the_code():
    generated = schema.schemas()
    stale = [name for name, one in generated.items() if committed(name) != one]
    assert stale == [], "run make schemas"
    for one in generated.values():
        Draft202012Validator.check_schema(one)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compiled")
    recipe, report = folder / "mine.json", folder / "told.json"
    call = ["compile", "workload:smollm2-grpo", "--gpu", "cpu", "-o", str(recipe)]
    assert main([*call, "--report", str(report)]) == 0
    return recipe, report


def test_a_recipe_is_of_its_schema_and_a_wrong_one_is_not(compiled):
    recipe = json.loads(compiled[0].read_text(encoding="utf-8"))
    assert problems("recipe.json", recipe) == []
    recipe["rollout"]["samples_per_prompt"] = "4"
    assert problems("recipe.json", recipe) == ["'4' is not of type 'integer'"]
    del recipe["rollout"]
    assert problems("recipe.json", recipe) == ["'rollout' is a required property"]


def test_reports_accepted_and_rejected_are_of_their_schema(compiled, tmp_path):
    assert problems("import-report.json", json.loads(compiled[1].read_text("utf-8"))) == []
    report = tmp_path / "report.json"
    assert main(["compile", "hydra:ppo_trainer", "--report", str(report)]) == 1
    assert problems("import-report.json", json.loads(report.read_text("utf-8"))) == []


def test_a_report_names_the_files_beside_it_and_the_bytes_of_the_recipe(compiled):
    recipe, report = compiled
    told = json.loads(report.read_text("utf-8"))
    assert (told["generated_path"], told["report_path"]) == ("mine.json", "told.json")
    assert told["generated_recipe_sha256"] == hashlib.sha256(recipe.read_bytes()).hexdigest()
    assert told["generated_recipe_validated"] is True


def test_a_rejected_launch_generates_nothing(tmp_path):
    recipe, report = tmp_path / "recipe.json", tmp_path / "report.json"
    assert main(["compile", "hydra:ppo_trainer", "-o", str(recipe), "--report", str(report)]) == 1
    told = json.loads(report.read_text("utf-8"))
    generated = [
        told[f"generated_{name}"] for name in ("path", "recipe_sha256", "recipe_validated")
    ]
    assert generated == [None, None, False]
    assert not recipe.exists()


@pytest.mark.parametrize("path", list(WORKLOADS.iterdir()), ids=lambda path: path.name)
def test_every_workload_is_of_its_schema(path):
    document = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    assert problems("workload.json", document) == []
    document.pop("title")
    assert problems("workload.json", document)


def test_a_whole_resolved_config_is_of_its_schema_and_half_a_one_is_not():
    whole = nested(sources.defaults("ppo_trainer", version="0.9.0"))
    assert problems("resolved-input.json", whole) == []
    del whole["data"]["shuffle"]
    assert problems("resolved-input.json", whole) == ["'shuffle' is a required property"]
