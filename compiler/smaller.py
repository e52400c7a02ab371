"""The smallest change to a launch that makes it fit: tried one by one, those first that change no number, then together.

By the count of capacity.py. What a change is called is what the user states for it: an override, or a binding.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from miniverl.compiler.capacity import assess

Lowered = Mapping[str, Any]
Change = Callable[[Lowered], Lowered]

_ACTOR = "actor_rollout_ref.actor"
_FEWEST_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting:
    """`stated` is what to state on top of the launch; `peak_bytes` what it takes then."""

    stated: tuple[str, ...]
    peak_bytes: int


def smallest(
    lowered: Lowered, configs: Mapping[str, Mapping[str, Any]], *, memory_bytes: int
) -> Fitting | None:
    """The first change that fits; where none does alone, as few as fit together. None: not even all of them."""
    changes = [*_changes(lowered)]
    alone = [(changed(lowered), (stated,)) for stated, changed in changes]
    together: list[tuple[Lowered, tuple[str, ...]]] = []
    for stated, changed in changes:
        before, names = together[-1] if together else (lowered, ())
        kept = tuple(name for name in names if _leaf(name) != _leaf(stated))
        together.append((changed(before), (*kept, stated)))
    for candidate, names in (*alone, *together):
        peak = _peak(candidate, configs)
        if peak <= memory_bytes:
            return Fitting(stated=names, peak_bytes=peak)
    return None


def _changes(lowered: Lowered) -> Iterator[tuple[str, Change]]:
    """Gradient checkpointing and smaller bins compute the same; 4 bits do not."""
    policy = lowered["policy"]
    if not policy["checkpoints_activations"]:
        checkpointed = _with("policy", checkpoints_activations=True)
        yield "actor_rollout_ref.model.enable_gradient_checkpointing=True", checkpointed
    tokens = lowered["update"]["micro_batch_tokens"] // 2
    while tokens >= _FEWEST_TOKENS:
        yield (
            f"{_ACTOR}.ppo_max_token_len_per_gpu={tokens}",
            _with("update", micro_batch_tokens=tokens),
        )
        tokens //= 2
    if policy.get("lora") and policy.get("quantization") is None:
        yield "quantization=nf4", _with("policy", quantization="nf4")
    if lowered.get("distillation") and any(
        one.get("quantization") is None for one in lowered["distillation"]["teachers"]
    ):
        yield "teacher_quantization=nf4", _teachers_in_nf4
    if policy.get("lora") and lowered["rollout"].get("weights") is None:
        yield "quantization=nf4 rollout_weights=nf4", _sampled_in_nf4


def _with(part: str, **values: Any) -> Change:
    return lambda lowered: {**lowered, part: {**lowered[part], **values}}


def _teachers_in_nf4(lowered: Lowered) -> Lowered:
    distillation = lowered["distillation"]
    teachers = [{**one, "quantization": "nf4"} for one in distillation["teachers"]]
    return {**lowered, "distillation": {**distillation, "teachers": teachers}}


def _sampled_in_nf4(lowered: Lowered) -> Lowered:
    """It takes quantised weights, so they are quantised too."""
    quantised = _with("policy", quantization="nf4")(lowered)
    return _with("rollout", weights="nf4")(quantised)


def _leaf(stated: str) -> str:
    return stated.partition("=")[0]


def _peak(lowered: Lowered, configs: Mapping[str, Mapping[str, Any]]) -> int:
    counted = assess(lowered, configs, gpu="", memory_bytes=0)
    peak: int = counted["peak_bytes"]
    return peak
