"""Models that have no form of their own here: transformers computes them, our sampler draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
)

from miniverl.engine import loop, models, transformers_forward
from miniverl.engine.decoder import Decoder
from miniverl.engine.digest import weights_sha256
from miniverl.engine.events import Event, Warned
from miniverl.engine.inputs import Inputs
from miniverl.engine.packed import pack
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Recipe
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.score import response_scores, score
from miniverl.engine.trajectory import Prompt, Trajectory
from miniverl.engine.transformers_forward import TransformersDecoder

pytestmark = pytest.mark.slow

WINDOWED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
OTHERS = {
    "gpt_neox": (GPTNeoXConfig, {}),
    "olmo2": (Olmo2Config, {}),
    "mistral, through a window": (MistralConfig, {"sliding_window": 4}),
    "gemma3, through a window in some layers": (Gemma3TextConfig, WINDOWED),
}
MakeModel = Callable[..., Path]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
GREEDY = Sampling(
    samples_per_prompt=1, max_tokens=9, temperature=0.0, top_p=1.0, top_k=0, end_tokens=(3,)
)


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    config_class, changes = OTHERS[request.param]
    return make_model(config_class, tie_word_embeddings=False, **changes)


def _policy(recipe: Recipe, folder: Path) -> models.Model:
    return models.load_policy(recipe.policy, folder, adapter_seed=3, device="cpu")


def _prompts(tokens: Sequence[Sequence[int]]) -> list[Prompt]:
    return [
        Prompt(
            prompt_id=number,
            messages=(),
            tokens=tuple(each),
            ground_truth=None,
            data_source="",
            extra={},
        )
        for number, each in enumerate(tokens)
    ]


def _trajectories(responses: Sequence[Response]) -> list[Trajectory]:
    return [
        Trajectory(
            prompt_id=each.prompt.prompt_id,
            sample=each.sample,
            prompt_tokens=each.prompt.tokens,
            response_tokens=each.tokens,
            is_finished=each.is_finished,
            response="",
            reward=0.0,
        )
        for each in responses
    ]


def test_greedy_tokens_are_those_of_generate_also_in_refilled_slots(
    other: Path, tiny_recipe: Recipe
) -> None:
    policy = _policy(tiny_recipe, other)
    assert transformers_forward.reason_against(policy) is None
    network = AutoModelForCausalLM.from_pretrained(other)
    expected = []
    for prompt in PROMPTS:
        out = network.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=9,
            eos_token_id=3,
            pad_token_id=0,
        )
        expected.append(tuple(out[0, len(prompt) :].tolist()))
    decoder = TransformersDecoder(policy, torch.float32)
    for max_rows in (2, 3):
        found = generate(
            decoder, _prompts(PROMPTS), GREEDY, seed=1, policy_version=0, max_rows=max_rows
        )
        assert [each.tokens for each in found] == expected


def test_log_probs_of_sampler_scorer_and_the_network_agree_and_recomputed_gradients_too(
    other: Path, tiny_recipe: Recipe
) -> None:
    policy = _policy(tiny_recipe, other)
    for name, parameter in policy.trained().items():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(
                parameter, std=0.3, generator=torch.Generator().manual_seed(len(name))
            )
    sampling = replace(GREEDY, samples_per_prompt=2, temperature=0.7)
    responses = generate(
        TransformersDecoder(policy, torch.float32),
        _prompts(PROMPTS),
        sampling,
        seed=1,
        policy_version=0,
    )
    rows = _trajectories(responses)
    scores = score(policy, rows, temperature=0.7, micro_batch_tokens=40, with_entropy=True)
    for each, log_probs_R in zip(responses, scores.log_probs, strict=True):
        tokens = torch.tensor([[*each.prompt.tokens, *each.tokens]])
        logits_RV = policy.network(tokens).logits[0, len(each.prompt.tokens) - 1 : -1] / 0.7
        expected_R = logits_RV.log_softmax(-1).gather(1, torch.tensor(each.tokens)[:, None])[:, 0]
        torch.testing.assert_close(log_probs_R, expected_R, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            torch.tensor(each.log_probs), expected_R.detach(), rtol=1e-4, atol=1e-4
        )
    kept, again = (_gradients(policy, rows, recomputes) for recomputes in (False, True))
    assert any(each.abs().max() > 0 for each in kept.values())
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name])
    assert not policy.network.is_gradient_checkpointing


def _gradients(
    policy: models.Model, rows: Sequence[Trajectory], recomputes: bool
) -> dict[str, torch.Tensor]:
    policy.checkpoints_activations = recomputes
    log_probs_P, _ = response_scores(
        policy, pack(rows, policy.device), temperature=1.0, entropy="none"
    )
    names, parameters = zip(*policy.trained().items(), strict=True)
    return dict(zip(names, torch.autograd.grad(log_probs_P.sum(), parameters), strict=True))


def test_a_known_model_gives_the_same_numbers_on_both_ways(
    tiny_policy: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = replace(GREEDY, samples_per_prompt=3, temperature=1.0, top_p=0.9)
    own = Decoder(tiny_policy, torch.float32)
    own.load()
    found = []
    for decoder in (own, TransformersDecoder(tiny_policy, torch.float32)):
        responses = generate(decoder, _prompts(PROMPTS), sampling, seed=2, policy_version=0)
        found.append([(each.tokens, each.is_finished) for each in responses])
    assert found[0] == found[1]
    rows = _trajectories(responses)
    ours = _gradients(tiny_policy, rows, False)
    monkeypatch.setattr(models, "FAMILIES", ())
    theirs = _gradients(tiny_policy, rows, False)
    for name, gradient in ours.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=1e-3, atol=1e-4)


def test_a_run_tells_of_it_and_goes_on_to_the_same_bytes(
    make_model: MakeModel, tiny_recipe: Recipe, tiny_inputs: Inputs, tmp_path: Path, bound: Any
) -> None:
    folder = make_model(GPTNeoXConfig)
    recipe, inputs = bound(tiny_recipe, tiny_inputs, folder)
    heard: list[Event] = []

    def run(out: Path, *, stops: bool = False, resume: bool = False) -> None:
        loop.run(
            recipe,
            inputs,
            out,
            device="cpu",
            threads=1,
            resume=resume,
            listen=heard.append,
            is_stopping=lambda: stops and any(e.name == "step_finished" for e in heard),
        )

    run(tmp_path / "straight")
    told = [each.message for each in heard if isinstance(each, Warned)]
    assert [each for each in told if "GPTNeoXForCausalLM, which has no form of its own" in each]
    heard.clear()
    run(tmp_path / "resumed", stops=True)
    run(tmp_path / "resumed", resume=True)
    for name in ("trajectories.jsonl", "metrics.jsonl", "adapter/adapter_model.safetensors"):
        straight, resumed = (tmp_path / each / name for each in ("straight", "resumed"))
        assert straight.read_bytes() == resumed.read_bytes()


@pytest.mark.parametrize(
    ("config_class", "changes", "reason"),
    [
        (CohereConfig, {"logit_scale": 0.5}, "its logits are not its output embedding times"),
        (MambaConfig, {"state_size": 4}, "transformers does not load it: MambaForCausalLM"),
    ],
)
def test_a_network_that_these_rows_would_misread_is_refused(
    make_model: MakeModel,
    tiny_recipe: Recipe,
    tiny_inputs: Inputs,
    tmp_path: Path,
    bound: Any,
    config_class: type,
    changes: dict[str, Any],
    reason: str,
) -> None:
    recipe, inputs = bound(tiny_recipe, tiny_inputs, make_model(config_class, **changes))
    with pytest.raises(WrongCall, match=reason):
        loop.run(
            recipe,
            inputs,
            tmp_path / "run",
            device="cpu",
            threads=1,
            resume=False,
            listen=lambda event: None,
        )


def test_its_weights_are_not_quantised(make_model: MakeModel, tiny_recipe: Recipe) -> None:
    policy = replace(tiny_recipe.policy, quantization="nf4")
    with pytest.raises(WrongCall, match="weights of 4 bits are for llama, qwen2, qwen3"):
        models.load_policy(
            policy, make_model(GPTNeoXConfig), adapter_seed=0, device="cpu", kept=object()
        )


@pytest.fixture
def bound() -> Callable[[Recipe, Inputs, Path], tuple[Recipe, Inputs]]:
    """The recipe and the inputs of another model."""

    def bind(recipe: Recipe, inputs: Inputs, folder: Path) -> tuple[Recipe, Inputs]:
        policy = replace(recipe.policy, weights_sha256=weights_sha256(folder))
        return replace(recipe, policy=policy), replace(inputs, model=folder)

    return bind
