"""What the roofline says of a step of a known size (bench/roofline.py)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miniverl.bench.roofline import phase_work
from miniverl.engine import recipe as recipes
from miniverl.engine.footprint import model_shape
from miniverl.engine.recipe import Recipe

Json = Mapping[str, Any]


def least_seconds(
    recipe: Recipe, model: Path, prompt_tokens: int, machine: Json
) -> dict[str, float]:
    """Phase -> its least time, where every prompt has `prompt_tokens` and every response the most tokens."""
    prompts, new = recipe.data.prompts_per_step, recipe.rollout.max_response_tokens
    responses = prompts * recipe.rollout.samples_per_prompt
    attended = _attended(prompt_tokens + new) - _attended(prompt_tokens)
    work = {
        "prompt_ids": list(range(prompts)),
        "prompt_tokens": prompts * prompt_tokens,
        "prompt_attended_tokens": prompts * _attended(prompt_tokens),
        "responses": responses,
        "response_tokens": responses * new,
        "response_attended_tokens": responses * attended,
        "longest_response": new,
    }
    path = model / "config.json"
    shape = model_shape(json.loads(path.read_text("utf-8")), str(path))
    phases = {"rollout": {"tokens": responses * new}, "update": {}}
    found = phase_work({"phases": phases, "work": work}, recipes.to_dict(recipe), {"policy": shape})
    return {
        name: max(
            each.bytes / machine["memory_bytes_per_second"],
            each.flops / machine["matmul_flops_per_second"][each.dtype],
        )
        for name, each in found.items()
    }


def _attended(tokens: int) -> int:
    """The first attends to itself, the second to two, and so on."""
    return tokens * (tokens + 1) // 2
