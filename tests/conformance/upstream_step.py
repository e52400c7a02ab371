"""Trains a tiny model with the pinned upstream's own functions, and prints inputs and outputs as JSON.

The model is transformers' Llama; its log-probabilities, entropies, losses, optimizer and schedule are upstream's, put
together in the order of its engine (verl/workers/engine/fsdp/transformer_impl.py). Called by test_step.py.
"""

from typing import Any

import torch
from standins import with_upstream
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM  # before stand-ins take its name

CONFIG = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "initializer_range": 0.4,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
PROMPT_LENGTHS, RESPONSE_LENGTHS = (2, 2, 2, 4, 4, 4), (5, 1, 3, 6, 2, 4)
MINI_BATCHES = ((0, 1, 2), (3, 4, 5))
TEMPERATURE, HORIZON, NUM_STEPS = 0.8, 9, 3
OPTIMIZER = {
    "learning_rate": 0.001,
    "betas": (0.9, 0.99),
    "weight_decay": 0.1,
    "max_gradient_norm": 0.5,
    "epsilon": 1e-8,
}
SCHEDULE = {"warmup_steps": 1, "total_steps": 4, "min_ratio": 0.1, "num_cycles": 0.5}
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
PLAIN = {"mode": "token-mean", "kl": "k3", "entropy": 0.01, "is_weighted": False}
CASES: tuple[dict[str, Any], ...] = (
    {"loss": "vanilla", "arguments": {**CLIPS, "dual_clip": 3.0}, **PLAIN},
    {
        "loss": "vanilla",
        "arguments": {**CLIPS, "dual_clip": 3.0},
        **PLAIN,
        "mode": "seq-mean-token-sum-norm",
        "kl": "k1+",
        "is_weighted": True,
    },
    {"loss": "gspo", "arguments": CLIPS, **PLAIN, "entropy": 0.0},
    {"loss": "sapo", "arguments": {"tau_positive": 1.0, "tau_negative": 1.05}, **PLAIN},
    {"loss": "gpg", "arguments": {}, **PLAIN, "kl": None},
    {"loss": "cispo", "arguments": CLIPS, **PLAIN, "mode": "seq-mean-token-sum"},
    {"loss": "dppo_tv", "arguments": {**CLIPS, "ratio_cap": 3.0}, **PLAIN, "kl": "abs"},
    {"loss": "dppo_kl", "arguments": {**CLIPS, "ratio_cap": 3.0}, **PLAIN, "kl": "k2"},
    {"loss": "dro", "arguments": {"beta": 0.3}, **PLAIN, "mode": "seq-mean-token-mean"},
    {"loss": "geo_mean", "arguments": CLIPS, **PLAIN, "is_weighted": True},
    {"loss": "kl_cov", "arguments": {"share": 0.3, "kl_coefficient": 1.0}, **PLAIN},
    # Every candidate is chosen, so that nothing is left to chance.
    {
        "loss": "clip_cov",
        "arguments": {**CLIPS, "share": 1.0, "covariance_low": 0.1, "covariance_high": 5.0},
        **PLAIN,
    },
)
KL_COEFFICIENT = 0.1


def rows() -> dict[str, list[Tensor]]:
    """What the update is given, of each sequence; some tokens are rejected, and one response whole."""
    random = torch.Generator().manual_seed(19)
    lengths = list(zip(PROMPT_LENGTHS, RESPONSE_LENGTHS, strict=True))

    def normal(length: int) -> Tensor:
        return torch.randn(length, generator=random)

    masks = [torch.ones(length, dtype=torch.int64) for length in RESPONSE_LENGTHS]
    masks[0][2], masks[3][4], masks[4][:] = 0, 0, 0
    tokens = [
        torch.randint(CONFIG["vocab_size"], (prompt + response,), generator=random)
        for prompt, response in lengths
    ]
    for first, *others in MINI_BATCHES:  # the samples of one prompt
        for index in others:
            tokens[index][: PROMPT_LENGTHS[index]] = tokens[first][: PROMPT_LENGTHS[first]]
    return {
        "tokens": tokens,
        "masks": masks,
        "old_shifts": [0.4 * normal(length) for length in RESPONSE_LENGTHS],
        "reference_shifts": [0.4 * normal(length) for length in RESPONSE_LENGTHS],
        "advantages": [normal(1).expand(length).clone() for length in RESPONSE_LENGTHS],
        "weights": [0.5 + torch.rand(length, generator=random) for length in RESPONSE_LENGTHS],
    }


def scores(model: LlamaForCausalLM, tokens_T: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of the next token and entropy, at every position."""
    from verl.utils import torch_functional

    logits_TV = model(tokens_T[None]).logits[0] / TEMPERATURE
    log_probs_T = torch_functional.logprobs_from_logits(logits_TV, tokens_T.roll(-1))
    return log_probs_T, torch_functional.entropy_from_logits(logits_TV)


def of_response(values_T: Tensor, index: int) -> Tensor:
    return values_T[PROMPT_LENGTHS[index] - 1 : -1]


def mini_batch_loss(
    model: LlamaForCausalLM,
    members: tuple[int, ...],
    given: dict[str, list[Tensor]],
    case: dict[str, Any],
) -> Tensor:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import ppo_loss

    def jagged(values: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    def chosen(name: str) -> list[Tensor]:
        return [given[name][index] for index in members]

    found = [scores(model, tokens_T) for tokens_T in chosen("tokens")]
    data = TensorDict({}, batch_size=len(members))
    data["prompts"] = jagged([torch.arange(PROMPT_LENGTHS[index]) for index in members])
    data["responses"] = jagged([torch.arange(RESPONSE_LENGTHS[index]) for index in members])
    data["response_mask"] = jagged(chosen("masks"))
    data["old_log_probs"] = jagged(chosen("old_log_probs"))
    data["ref_log_prob"] = jagged(chosen("reference_log_probs"))
    data["advantages"] = jagged(chosen("advantages"))
    if case["is_weighted"]:
        data["rollout_is_weights"] = pad_sequence(chosen("weights"), batch_first=True)
    tensordict_utils.assign_non_tensor(
        data,
        dp_size=1,
        batch_num_tokens=sum(RESPONSE_LENGTHS[index] for index in members),
        global_batch_size=len(members),
    )
    output = {"log_probs": jagged([each for each, _ in found])}
    if case["entropy"]:
        output["entropy"] = jagged([each for _, each in found])
    return ppo_loss(_actor(case), output, data)[0]


def _actor(case: dict[str, Any]) -> Any:
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    taken = case["arguments"]
    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=taken.get("clip_low", 0.2),
        clip_ratio_high=taken.get("clip_high", 0.2),
        clip_ratio_c=taken.get("dual_clip", taken.get("ratio_cap", 3.0)),
        tau_pos=taken.get("tau_positive", 1.0),
        tau_neg=taken.get("tau_negative", 1.0),
        policy_loss=PolicyLossConfig(
            loss_mode=case["loss"],
            dro_beta=taken.get("beta"),
            kl_cov_ratio=taken.get("share", 0.0002),
            ppo_kl_coef=taken.get("kl_coefficient", 1.0),
            clip_cov_ratio=taken.get("share", 0.0002),
            clip_cov_lb=taken.get("covariance_low", 1.0),
            clip_cov_ub=taken.get("covariance_high", 5.0),
        ),
        entropy_coeff=case["entropy"],
        use_kl_loss=case["kl"] is not None,
        kl_loss_coef=KL_COEFFICIENT,
        kl_loss_type=case["kl"] or "k1",
        loss_agg_mode=case["mode"],
        loss_scale_factor=HORIZON,
    )


def trained(
    start: dict[str, Tensor], given: dict[str, list[Tensor]], case: dict[str, Any]
) -> dict[str, Any]:
    """Steps of two mini-batches; the schedule moves on once a step, and all is as in optimizer_step."""
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    model.load_state_dict(start)
    config = FSDPOptimizerConfig(
        lr=OPTIMIZER["learning_rate"],
        weight_decay=OPTIMIZER["weight_decay"],
        betas=OPTIMIZER["betas"],
        clip_grad=OPTIMIZER["max_gradient_norm"],
    )
    optimizer = build_optimizer(model.parameters(), config)
    scheduler = get_cosine_schedule_with_warmup(
        optimizer,
        num_warmup_steps=SCHEDULE["warmup_steps"],
        num_training_steps=SCHEDULE["total_steps"],
        min_lr_ratio=SCHEDULE["min_ratio"],
        num_cycles=SCHEDULE["num_cycles"],
    )
    norms, losses = [], []
    for _ in range(NUM_STEPS):
        for members in MINI_BATCHES:
            optimizer.zero_grad()
            loss = mini_batch_loss(model, members, given, case)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=config.clip_grad)
            optimizer.step()
            norms.append(norm.item())
            losses.append(loss.item())
        scheduler.step()
    return {**case, "norms": norms, "losses": losses, "weights_after": _plain(model)}


def head(given: dict[str, list[Tensor]], sharpness: float) -> dict[str, Any]:
    """Each score of all response tokens by a model whose one layer adds 0, and the gradients of its sum times factors."""
    config = {**CONFIG, "num_hidden_layers": 1, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**config))
    layer = model.model.layers[0]
    layer.self_attn.o_proj.weight.data.zero_()
    layer.mlp.down_proj.weight.data.zero_()
    model.lm_head.weight.data *= sharpness
    found = {}
    for place, name in enumerate(("log-probability", "entropy")):
        model.zero_grad()
        values_P = torch.cat(
            [
                of_response(scores(model, tokens_T)[place], index)
                for index, tokens_T in enumerate(given["tokens"])
            ]
        )
        factors_P = torch.cat(given["weights"])
        (values_P * factors_P).sum().backward()
        ends = {"head": model.lm_head, "embedding": model.model.embed_tokens}
        gradients = {key: each.weight.grad.tolist() for key, each in ends.items()}
        plain = {"values": values_P.tolist(), "factors": factors_P.tolist()}
        found[name] = {**plain, "gradients": gradients}
    return {"config": config, "weights": _plain(model), "scores": found}


def observe() -> dict[str, Any]:
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    start = {name: each.detach().clone() for name, each in model.state_dict().items()}
    given = rows()
    with torch.no_grad():
        log_probs = [
            of_response(scores(model, tokens_T)[0], index)
            for index, tokens_T in enumerate(given["tokens"])
        ]
    for name in ("old", "reference"):
        pairs = zip(log_probs, given[f"{name}_shifts"], strict=True)
        given[f"{name}_log_probs"] = [each + shift for each, shift in pairs]
    return {
        "config": CONFIG,
        "weights_before": _plain(model),
        "prompt_lengths": PROMPT_LENGTHS,
        "rows": {name: [each.tolist() for each in values] for name, values in given.items()},
        "temperature": TEMPERATURE,
        "horizon": HORIZON,
        "num_steps": NUM_STEPS,
        "optimizer": OPTIMIZER,
        "schedule": SCHEDULE,
        "kl_coefficient": KL_COEFFICIENT,
        "cases": [trained(start, given, case) for case in CASES],
        "heads": [head(given, sharpness) for sharpness in (0.02, 0.1)],
    }


def _plain(model: LlamaForCausalLM) -> dict[str, Any]:
    return {name: each.tolist() for name, each in model.named_parameters()}


if __name__ == "__main__":
    with_upstream(observe)
