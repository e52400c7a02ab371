"""In which type a device computes, and by which attention: what a workload that leaves it open gets, and why.

One type for every model that samples, scores or is updated; adapters, trained weights and their optimizer are float32
beside it. float16 is never chosen: its gradients vanish unless they are scaled, and a scaler skips updates.
"""

from dataclasses import dataclass

from miniverl.engine.recipe import Dtype

# As engine/identity.py lets them in; memory-efficient attention and cuDNN's add up in no fixed order.
ATTENTION = "Attention takes torch's flash kernel or the plain one: the others have no deterministic backward"
_BFLOAT16_SINCE = (8, 0)  # compute capability: Ampere


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    compute: Dtype
    reason: str

    @property
    def sentence(self) -> str:
        """What is in which type, for a person."""
        return f"Sampling, scoring and updates multiply in {self.compute}, beside float32 for what is trained: {self.reason}"


def precision(device: str, compute_capability: str | None) -> Precision:
    """Of a device kind and, on a card, its compute capability; None: nobody tells it."""
    if device == "cpu":
        reason = "few processors multiply bfloat16 faster, and none of them as another does"
        return Precision(compute="float32", reason=reason)
    if compute_capability is None:
        reason = "the card's compute capability is not known, and with it whether it has bfloat16"
        return Precision(compute="float32", reason=reason)
    major, minor = map(int, compute_capability.split("."))
    if (major, minor) >= _BFLOAT16_SINCE:
        reason = f"compute capability {compute_capability} multiplies it natively"
        return Precision(compute="bfloat16", reason=reason)
    reason = f"compute capability {compute_capability} has no bfloat16, and float16 would need its gradients scaled"
    return Precision(compute="float32", reason=reason)
