"""This engine's rollout: `generate` over its decoder and its sampler, as a training step calls it.

python -P -m miniverl.bench.peers.ours_rollout MODEL_FOLDER --dtype float32 --threads 2
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from miniverl.bench.peers.answers import Json, serve
from miniverl.engine.decoder import Decoder
from miniverl.engine.models import DTYPES, load_policy
from miniverl.engine.recipe import Dtype, Policy
from miniverl.engine.sample import Sampling, generate
from miniverl.engine.trajectory import Prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    call = parser.parse_args()
    torch.set_num_threads(call.threads)
    decoder = loaded(call.model, call.dtype)

    def measure(question: Json) -> Json:
        prompts = as_prompts(question["prompts"])
        sampling = free(question["new_tokens"])
        started = time.perf_counter()
        responses = generate(decoder, prompts, sampling, seed=question["round"], policy_version=0)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "tokens": sum(len(each.tokens) for each in responses)}

    serve(measure)


def loaded(folder: Path, dtype: Dtype) -> Decoder:
    """The decoder over the folder's weights as they are, without an adapter."""
    policy = Policy(
        weights_sha256="",
        parameter_dtype="float32",
        compute_dtype="float32",
        lora=None,
        checkpoints_activations=False,
    )
    model = load_policy(policy, folder, adapter_seed=0, device="cpu")
    decoder = Decoder(model, DTYPES[dtype])
    decoder.load()
    return decoder


def as_prompts(tokens: Sequence[Sequence[int]]) -> list[Prompt]:
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


def free(new_tokens: int, *, samples: int = 1, end_tokens: tuple[int, ...] = ()) -> Sampling:
    """From the whole distribution; without end tokens each response has `new_tokens`."""
    return Sampling(
        samples_per_prompt=samples,
        max_tokens=new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        end_tokens=end_tokens,
    )


if __name__ == "__main__":
    main()
