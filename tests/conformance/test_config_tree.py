"""What we wrote down of upstream's config tree, against the tree of the pinned wheel."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.upstream import quiet, tree

pytestmark = pytest.mark.slow

COPY = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,[^$]*|,\$\{.*\})?\}")
DEFAULT_LEAVES = Path(__file__).parents[1] / "compiler" / "default_leaves.json"


@pytest.fixture(scope="module")
def config() -> DictConfig:
    with initialize_config_dir(str(tree("0.9.0", quiet)), version_base=None):
        return compose("ppo_trainer")


def leaves(plain: Any, path: str = "") -> dict[str, Any]:
    """Scalars, whole lists and empty mappings by their dotted paths."""
    if not isinstance(plain, dict) or not plain:
        return {path: plain}
    return {
        field: value
        for name, branch in plain.items()
        for field, value in leaves(branch, f"{path}.{name}".lstrip(".")).items()
    }


def test_the_carried_default_leaves_are_those_of_the_wheel(config):
    composed = leaves(OmegaConf.to_container(config, resolve=True, throw_on_missing=False))
    assert json.loads(DEFAULT_LEAVES.read_text(encoding="utf-8")) == composed


def test_every_copy_of_another_leaf_is_known_but_for_profilers(config):
    resolved = leaves(OmegaConf.to_container(config, resolve=True, throw_on_missing=False))
    copies = {}
    for field, value in leaves(OmegaConf.to_container(config, resolve=False)).items():
        if not isinstance(value, str) or "${" not in value or ".profiler." in field:
            continue
        match = COPY.fullmatch(value.replace(" ", ""))
        if match is None:  # a name made of two others
            continue
        source = match[1]
        if source.startswith("."):
            source = field.rpartition(".")[0] + source
        below = [leaf for leaf in resolved if leaf.startswith(f"{source}.")]
        copies |= {field + leaf.removeprefix(source): leaf for leaf in below or [source]}
    assert copies == FOLLOWS
