"""The runs that are killed: a tiny model with an adapter, and everything at once that makes a run hard to resume.

Several mini-batches and epochs in a step, validation, retention, an order of prompts that crosses the end of an
epoch, groups that are dropped, a price of the KL that adapts; with PPO a critic, with distillation two teachers.
"""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import LlamaConfig, Qwen3Config
from transformers.utils import logging

from miniverl.engine import recipe as recipes
from miniverl.engine.algorithm import AdaptiveKl, Advantage, GroupFilter, KlReward
from miniverl.engine.digest import rows_sha256, weights_sha256
from miniverl.engine.inputs import Inputs
from miniverl.engine.recipe import Distillation, Recipe, Teacher
from miniverl.engine.rows import read_rows

NAMES = ("grpo", "ppo", "distillation")


def write(folder: Path) -> None:
    """Make the inputs, and for each name a folder with the run's recipe.json and bindings.json."""
    tiny = _tiny()
    logging.disable_progress_bar()
    (folder / "model").mkdir()
    shape = tiny.tiny_shape() | {"num_hidden_layers": 1}
    tiny.save_model(LlamaConfig(**shape, tie_word_embeddings=True), folder / "model")
    train = tiny.write_prompts(folder / "train.parquet", range(6))
    validation = tiny.write_prompts(folder / "validation.parquet", range(3))
    plain = tiny.make_recipe(folder / "model", train, validation)
    # Checkpoints behind steps 2 and 4, of which the latter stays.
    steps = replace(plain.steps, num_steps=4, keep_checkpoints=1)
    plain = replace(plain, steps=steps)
    grpo = replace(
        plain,
        data=replace(plain.data, prompts_per_draw=1),
        rollout=replace(plain.rollout, samples_per_prompt=8, temperature=2.0),
        update=replace(plain.update, micro_batch_tokens=96),
        group_filter=GroupFilter(metric="reward", batches_in_flight=1),
        kl_reward=KlReward(
            estimator="k1", coefficient=0.05, adaptive=AdaptiveKl(target=0.1, horizon=40)
        ),
    )
    bound = {"model": folder / "model", "train": train, "validation": validation}
    ppo = replace(
        grpo,
        critic=tiny.make_critic(grpo),
        advantage=Advantage(estimator="gae", divides_by_std=None, gamma=1.0, gae_lambda=0.9),
    )
    _bind(folder / "grpo", grpo, bound)
    _bind(folder / "ppo", ppo, bound | {"critic": folder / "model"})
    _bind(folder / "distillation", *_distillation(folder, plain, bound, tiny))


def load(folder: Path) -> tuple[Recipe, Inputs]:
    """What `write` put there."""
    bindings = json.loads((folder / "bindings.json").read_text())
    recipe = recipes.loads((folder / "recipe.json").read_text(), "chaos")
    return recipe, Inputs.of(recipe, {name: Path(path) for name, path in bindings.items()})


def _distillation(
    folder: Path, plain: Recipe, bound: dict[str, Path], tiny: ModuleType
) -> tuple[Recipe, dict[str, Path]]:
    """Odd prompts from one teacher, even ones from another."""
    rows = [
        row | {"data_source": "odd" if number % 2 else "even"}
        for number, row in enumerate(read_rows(bound["train"]))
    ]
    train = folder / "two_sources.parquet"
    pq.write_table(pa.Table.from_pylist(rows), train)
    kinds = {"odd": Qwen3Config, "even": LlamaConfig}
    for key, kind in kinds.items():
        (folder / key).mkdir()
        tiny.save_model(kind(**tiny.tiny_shape() | {"num_hidden_layers": 1}), folder / key)
    distillation = Distillation(
        teachers=tuple(
            Teacher(key=key, weights_sha256=weights_sha256(folder / key), dtype="float32")
            for key in kinds
        ),
        routing_field="data_source",
        loss="forward_kl_topk",
        top_k=4,
        min_log_prob=-10.0,
        max_loss=10.0,
        policy_gradient_clips=None,
        uses_task_rewards=False,
        coefficient=1.0,
    )
    data = replace(
        plain.data,
        train_sha256=rows_sha256(read_rows(train)),
        prompts_per_step=3,
        prompts_per_draw=1,
    )
    teachers = {f"teacher.{key}": folder / key for key in kinds}
    return replace(plain, data=data, distillation=distillation), {
        **bound,
        "train": train,
        **teachers,
    }


def _bind(folder: Path, recipe: Recipe, paths: dict[str, Path]) -> None:
    folder.mkdir()
    (folder / "recipe.json").write_text(recipes.dumps(recipe))
    (folder / "bindings.json").write_text(json.dumps(paths, default=str))


def _tiny() -> ModuleType:
    """tests/engine/conftest.py, which makes the engine tests' model."""
    path = Path(__file__).parents[1] / "engine" / "conftest.py"
    spec = importlib.util.spec_from_file_location("engine_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
