"""The engine's numbers on this device against transformers', and against plain arithmetic written out here."""

import importlib.util
from pathlib import Path

import torch
from seeded import model
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from miniverl.engine import nf4
from miniverl.engine.decoder import Decoder
from miniverl.engine.identity import make_deterministic
from miniverl.engine.models import DTYPES, load_policy
from miniverl.engine.recipe import Policy
from miniverl.engine.sample import Response, Sampling, generate
from miniverl.engine.score import score
from miniverl.engine.trajectory import Prompt, Trajectory

# Sums of another order, in float32; in bfloat16 eight bits a number, through three layers.
_MOST_APART = {"float32": 5e-5, "bfloat16": 6e-2}
_PROMPTS = ((5, 17, 230, 4001), (9, 9, 31, 7, 12000, 6, 2, 44, 81), (40000, 3))
_TOKENS = 24


def decoder(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    """Tokens sampled by our decoder, greedy and drawn, and what transformers' own forward says of them."""
    make_deterministic(device, 2)
    found: dict[str, object] = {"passes": True}
    told = []
    for name in ("tiny-qwen3", "tiny-qwen3-teacher"):
        folder = model(name, carry, out)
        for dtype in ("float32", "bfloat16"):
            policy = load_policy(_policy(dtype), folder, adapter_seed=1, device=device)
            theirs = AutoModelForCausalLM.from_pretrained(
                folder, dtype=DTYPES[dtype], attn_implementation="sdpa", local_files_only=True
            ).to(device)
            for kind, temperature in (("greedy", 0.0), ("drawn", 1.0)):
                responses = _sampled(policy, DTYPES[dtype], temperature)
                apart = max(_apart(theirs, each, device) for each in responses)
                scored = score(
                    policy,
                    [_trajectory(each) for each in responses],
                    temperature=1.0,
                    micro_batch_tokens=1024,
                    with_entropy=False,
                ).log_probs
                own = (
                    max(
                        float((torch.tensor(each.log_probs) - row.cpu()).abs().max())
                        for each, row in zip(responses, scored, strict=True)
                        if kind == "drawn"
                    )
                    if kind == "drawn"
                    else 0.0
                )
                found[f"{name}, {dtype}, {kind}"] = {
                    "sampler_and_transformers": apart,
                    "sampler_and_scorer": own,
                }
                if max(apart, own) > _MOST_APART[dtype]:
                    found["passes"] = False
                told.append((dtype, max(apart, own)))
    for dtype in ("float32", "bfloat16"):
        most = max(apart for kind, apart in told if kind == dtype)
        found[f"most_apart_{dtype}"] = most
    found["told"] = (
        "log-probs of our decoder, our scorer and transformers apart by at most "
        f"{found['most_apart_float32']:.1e} in float32, {found['most_apart_bfloat16']:.1e} in bfloat16"
    )
    return found


def quantised(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    """Bytes, values, products and gradients against the format's definition, one weight after the other."""
    make_deterministic(device, 2)
    generator = torch.Generator().manual_seed(7)
    wrong = []
    for shape in ((96, 128), (64, 100), (130, 64)):
        matrix = 0.05 * torch.randn(shape, generator=generator)
        weight = nf4.Nf4Weight(matrix.shape, nf4.quantise(matrix)).to(device)
        before = {name: buffer.clone() for name, buffer in weight.named_buffers()}
        dense = weight.dense(torch.float32).cpu()
        if not torch.equal(dense, _written_out(weight).view(shape)):
            wrong.append(f"{shape}: values are not the format's")
        if float((dense - matrix).abs().max()) > 0.17 * float(matrix.abs().max()):
            wrong.append(f"{shape}: values are not near the matrix")
        for dtype in (torch.float32, torch.bfloat16):
            inputs = torch.randn(9, shape[1], generator=generator).to(device, dtype)
            wrong += _wrong_products(weight, dense.to(device, dtype), inputs, f"{shape}, {dtype}")
        after = dict(weight.named_buffers())
        if not all(torch.equal(before[name], after[name]) for name in before):
            wrong.append(f"{shape}: the bytes have moved")
    return {
        "passes": not wrong,
        "wrong": wrong,
        "told": "; ".join(wrong) or "values, products, gradients and bytes are the format's",
    }


def graphs(*, carry: Path, out: Path, device: str) -> dict[str, object]:
    """Decoding in CUDA graphs, where this checkout has it."""
    is_there = importlib.util.find_spec("miniverl.engine.graphs") is not None
    told = (
        "not checked" if is_there else "this checkout decodes without CUDA graphs: nothing to check"
    )
    return {"passes": not is_there, "are_there": is_there, "told": told}


def _policy(dtype: str) -> Policy:
    return Policy(
        weights_sha256="",
        parameter_dtype=dtype,  # type: ignore[arg-type]
        compute_dtype=dtype,  # type: ignore[arg-type]
        lora=None,
        checkpoints_activations=False,
    )


def _sampled(policy: object, dtype: torch.dtype, temperature: float) -> list[Response]:
    own = Decoder(policy, dtype)  # type: ignore[arg-type]
    own.load()
    prompts = [
        Prompt(
            prompt_id=number,
            messages=(),
            tokens=tokens,
            ground_truth="",
            data_source="",
            extra={},
        )
        for number, tokens in enumerate(_PROMPTS)
    ]
    sampling = Sampling(
        samples_per_prompt=2,
        max_tokens=_TOKENS,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        end_tokens=(),
    )
    return generate(own, prompts, sampling, seed=3, policy_version=0)


@torch.no_grad()
def _apart(theirs: nn.Module, response: Response, device: str) -> float:
    """Of transformers' log-probs, without a cache; greedy tokens have to be as likely as its own likeliest one."""
    prompt = response.prompt.tokens
    whole = torch.tensor([[*prompt, *response.tokens]], device=device)
    logits_TV = theirs(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    log_probs_TV = logits_TV.log_softmax(-1).cpu()
    tokens_T = torch.tensor(response.tokens)
    said_T = log_probs_TV.gather(1, tokens_T[:, None])[:, 0]
    return float((said_T - torch.tensor(response.log_probs)).abs().max())


def _trajectory(response: Response) -> Trajectory:
    return Trajectory(
        prompt_id=response.prompt.prompt_id,
        sample=response.sample,
        prompt_tokens=response.prompt.tokens,
        response_tokens=response.tokens,
        is_finished=response.is_finished,
        response="",
        reward=0.0,
    )


def _written_out(weight: nf4.Nf4Weight) -> Tensor:
    """level * (number * largest + mean), with the 256 numbers as the format defines them."""
    tensors = {name: buffer.cpu() for name, buffer in weight.named_buffers()}
    numbers = _numbers()
    codes = tensors["codes"].tolist()
    levels = torch.tensor(nf4.LEVELS)
    places = torch.tensor([place for byte in codes for place in (byte >> 4, byte & 15)])
    values_N = levels[places][: weight.numel()]
    blocks_N = torch.arange(weight.numel()) // nf4.BLOCK
    largest_N = tensors["nested_absmax"][blocks_N // nf4.BLOCK_OF_BLOCKS]
    absmax_N = numbers[tensors["absmax"].long()[blocks_N]] * largest_N + tensors["nested_offset"]
    return values_N * absmax_N


def _numbers() -> Tensor:
    """Means of neighbours on a line from 0.1 to 1, doubled in number with each power of ten; zero and one."""
    found = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        means = ((edges[:-1] + edges[1:]) / 2) * 10.0 ** (exponent - 6)
        found += [sign * value for value in means.tolist() for sign in (1, -1)]
    return torch.tensor(sorted(found))


def _wrong_products(weight: nf4.Nf4Weight, dense: Tensor, inputs: Tensor, name: str) -> list[str]:
    """Forward, backward, and forward without gradients, each equal to a product with the values."""
    wrong = []
    ours, theirs = (inputs.clone().requires_grad_() for _ in range(2))
    product, expected = nf4.linear(ours, weight, None), functional.linear(theirs, dense)
    if not torch.equal(product, expected):
        wrong.append(f"{name}: a product differs")
    product.float().square().sum().backward()
    expected.float().square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    if not torch.allclose(
        ours.grad, theirs.grad, rtol=1e-5 if inputs.dtype == torch.float32 else 1e-2
    ):
        wrong.append(f"{name}: a gradient differs")
    with torch.inference_mode():
        if not torch.equal(nf4.linear(inputs, weight, None), expected):
            wrong.append(f"{name}: a product without gradients differs")
    return wrong
