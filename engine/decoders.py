"""Which decoder a policy has: one of its own, or transformers' (engine/transformers_forward.py)."""

from miniverl.engine import models
from miniverl.engine.decoder import Decoder
from miniverl.engine.models import Model
from miniverl.engine.recipe import Recipe, Rollout
from miniverl.engine.transformers_forward import TransformersDecoder

AnyDecoder = Decoder | TransformersDecoder


def decoder_of(policy: Model, rollout: Rollout) -> AnyDecoder:
    dtype = models.DTYPES[rollout.dtype]
    if policy.is_known:
        return Decoder(policy, dtype, rollout.weights)
    return TransformersDecoder(policy, dtype)


def merges(policy: Model, recipe: Recipe) -> bool:
    """Whether it samples from a copy with the adapter in it."""
    has_copy = policy.is_known and recipe.rollout.weights is None
    return has_copy and recipe.policy.lora is not None
