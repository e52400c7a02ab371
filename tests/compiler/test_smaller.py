"""The smallest change that makes a launch fit: one alone where one does, those that change no number first."""

from typing import Any

from miniverl.compiler.capacity import assess
from miniverl.compiler.smaller import smallest

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
LORA = {"rank": 16, "alpha": 32.0, "target_modules": ["all-linear"], "excluded_modules": []}


def lowered(**policy: Any) -> dict[str, Any]:
    return {
        "policy": {
            "parameter_dtype": "float32",
            "compute_dtype": "bfloat16",
            "lora": LORA,
            "checkpoints_activations": False,
            **policy,
        },
        "rollout": {"samples_per_prompt": 4, "max_response_tokens": 1024, "dtype": "bfloat16"},
        "data": {"max_prompt_tokens": 512, "prompts_per_step": 8},
        "update": {"micro_batch_tokens": 8192, "prompts_per_mini_batch": 8},
    }


def peak(launch: dict[str, Any]) -> int:
    found: int = assess(launch, {"model": CONFIG}, gpu="", memory_bytes=0)["peak_bytes"]
    return found


def test_recomputing_activations_comes_first_since_it_changes_no_number() -> None:
    launch = lowered()
    checkpointed = peak(lowered(checkpoints_activations=True))
    found = smallest(launch, {"model": CONFIG}, memory_bytes=checkpointed)
    assert found is not None
    assert found.stated == ("actor_rollout_ref.model.enable_gradient_checkpointing=True",)
    assert found.peak_bytes == checkpointed < peak(launch)


def test_changes_are_taken_together_where_none_alone_will_do() -> None:
    both = lowered(checkpoints_activations=True)
    both["update"]["micro_batch_tokens"] = 256
    alone = [peak(lowered(checkpoints_activations=True)), peak(lowered(quantization="nf4"))]
    assert peak(both) < min(alone)
    found = smallest(lowered(), {"model": CONFIG}, memory_bytes=peak(both))
    assert found is not None
    assert found.stated[0].startswith("actor_rollout_ref.model.enable_gradient_checkpointing")
    assert len(found.stated) > 1
    assert len({text.partition("=")[0] for text in found.stated}) == len(found.stated)
    assert found.peak_bytes <= peak(both)


def test_what_nothing_makes_fit_is_said() -> None:
    assert smallest(lowered(), {"model": CONFIG}, memory_bytes=2**30) is None
