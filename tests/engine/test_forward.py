"""Our own forward against transformers': the same states and gradients, whatever stands beside a trajectory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from miniverl.engine.forward import predicting_states
from miniverl.engine.models import Model, load_policy
from miniverl.engine.packed import num_packed_tokens, pack
from miniverl.engine.recipe import Recipe
from miniverl.engine.trajectory import Trajectory


def trajectory(
    prompt_id: int, prompt: Sequence[int], response: Sequence[int], sample: int = 0
) -> Trajectory:
    return Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=tuple(prompt),
        response_tokens=tuple(response),
        is_finished=True,
        response="",
        reward=0.0,
    )


TRAJECTORIES = (
    trajectory(0, [1, 14, 5, 7, 2], [4, 9, 3]),
    trajectory(0, [1, 14, 5, 7, 2], [6]),
    trajectory(1, [1, 15, 2], [6, 8, 8, 5, 3]),
)


def _transformers_states(model: Model, trajectories: Sequence[Trajectory]) -> Tensor:
    """One row at a time, no padding, no sharing."""
    states = []
    for each in trajectories:
        tokens_1T = torch.tensor([each.prompt_tokens + each.response_tokens])
        hidden_TH = model.network.base_model(tokens_1T, use_cache=False).last_hidden_state[0]
        states.append(hidden_TH[len(each.prompt_tokens) - 1 : -1])
    return torch.cat(states)


def _gradients(model: Model, states_PH: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, states_PH.numel()).view_as(states_PH)
    loss = (states_PH * weights).sum()
    parameters = list(model.trained().values())
    return list(torch.autograd.grad(loss, parameters, materialize_grads=True))


def test_the_worked_instance() -> None:
    packed = pack(
        [
            trajectory(0, [7, 8, 9], [4, 2]),
            trajectory(0, [7, 8, 9], [6], sample=1),
            trajectory(3, [5], [6, 3, 2]),
        ],
        torch.device("cpu"),
    )
    assert packed.tokens_S.tolist() == [7, 8, 9, 5, 4, 6, 3]
    assert packed.positions_S.tolist() == [0, 1, 2, 0, 3, 1, 2]
    assert packed.predictors_P.tolist() == [2, 4, 2, 3, 5, 6]
    assert packed.targets_P.tolist() == [4, 2, 6, 6, 3, 2]
    assert packed.response_lengths == (2, 1, 3)


def test_a_shared_prompt_counts_once() -> None:
    assert num_packed_tokens(TRAJECTORIES) == 5 + 3 + (3 - 1) + (1 - 1) + (5 - 1)


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("is_adapted", [True, False])
def test_states_and_gradients_equal_those_of_transformers(
    make_model: Callable[..., Path],
    tiny_recipe: Recipe,
    config_class: type,
    is_adapted: bool,
) -> None:
    recipe = tiny_recipe.policy if is_adapted else replace(tiny_recipe.policy, lora=None)
    model = load_policy(recipe, make_model(config_class), adapter_seed=1, device="cpu")
    model.network.double()
    model.compute_dtype = torch.float64
    for name, parameter in model.trained().items():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
    ours_PH = predicting_states(model, pack(TRAJECTORIES, model.device))
    theirs_PH = _transformers_states(model, TRAJECTORIES)
    # transformers computes rotations and norms in float32 even here, and we its rotations.
    torch.testing.assert_close(ours_PH, theirs_PH, atol=2e-5, rtol=1e-5)
    for ours, theirs in zip(_gradients(model, ours_PH), _gradients(model, theirs_PH), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def test_what_stands_beside_a_trajectory_does_not_reach_its_states(tiny_policy: Model) -> None:
    together_PH = predicting_states(tiny_policy, pack(TRAJECTORIES, tiny_policy.device))
    alone_PH = torch.cat(
        [predicting_states(tiny_policy, pack([each], tiny_policy.device)) for each in TRAJECTORIES]
    )
    torch.testing.assert_close(together_PH, alone_PH, atol=2e-6, rtol=1e-5)


def test_checkpointed_activations_change_no_gradient(tiny_policy: Model) -> None:
    packed = pack(TRAJECTORIES, tiny_policy.device)
    plain = _gradients(tiny_policy, predicting_states(tiny_policy, packed))
    tiny_policy.checkpoints_activations = True
    checkpointed = _gradients(tiny_policy, predicting_states(tiny_policy, packed))
    assert all(torch.equal(*pair) for pair in zip(plain, checkpointed, strict=True))


def test_products_in_bfloat16_stay_near_those_in_float32(tiny_policy: Model) -> None:
    packed = pack(TRAJECTORIES, tiny_policy.device)
    exact_PH = predicting_states(tiny_policy, packed)
    tiny_policy.compute_dtype = torch.bfloat16
    rounded_PH = predicting_states(tiny_policy, packed)
    error = (rounded_PH - exact_PH).norm() / exact_PH.norm()
    assert 1e-4 < error.item() < 0.1
