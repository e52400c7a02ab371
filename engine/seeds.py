"""Randomness with a name: noise is a pure function of what it is for, never of what ran before.

Three kinds, none of which touches a global generator:

    noise_key, uniforms   the noise of one sampled token, from (seed, prompt, policy version, sample, position)
    generator             a generator for one named purpose (the initialisation of parameters)
    engine/order.py       the permutation of the prompts, from (seed, epoch)

Since nothing is drawn from a running state, batching, refilled rows and resuming change no sample, and a
checkpoint holds no generator state. The hash is splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014), chained over the parts of the key.

Axes: B rows.
"""

import hashlib

import torch
from torch import Tensor

_MASK_64 = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB


def noise_key(seed: int, prompt_id: int, policy_version: int, sample: int) -> int:
    """The key of one sampled response, as a signed 64-bit integer.

    `policy_version` counts the steps taken before the rollout, so that a prompt met again gets other noise.
    """
    key = 0
    for part in (seed, prompt_id, policy_version, sample):
        key = _mix(key ^ (part & _MASK_64))
    return _signed(key)


def uniforms(keys_B: Tensor, positions_B: Tensor | int) -> Tensor:
    """One uniform number in [0, 1) for each (key, position); float64 [B], multiples of 2^-53.

    `keys_B` is int64; `positions_B` is the index of the token within its response. Integer operations only
    (int64 products wrap), hence equal on every device, whatever else is in the batch.
    """
    bits_B = (keys_B ^ positions_B) + _signed(_INCREMENT)
    bits_B = (bits_B ^ _shifted(bits_B, 30)) * _signed(_FIRST_FACTOR)
    bits_B = (bits_B ^ _shifted(bits_B, 27)) * _signed(_SECOND_FACTOR)
    bits_B = bits_B ^ _shifted(bits_B, 31)
    return _shifted(bits_B, 11).to(torch.float64) * 2.0**-53


def named_seed(seed: int, name: str) -> int:
    """A seed in [0, 2^63) for one purpose: the first bits of the SHA-256 of "seed:name"."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for the purpose `name` (say "lora:layers.0.q_proj")."""
    return torch.Generator().manual_seed(named_seed(seed, name))


def _mix(state: int) -> int:
    state = (state + _INCREMENT) & _MASK_64
    state = ((state ^ (state >> 30)) * _FIRST_FACTOR) & _MASK_64
    state = ((state ^ (state >> 27)) * _SECOND_FACTOR) & _MASK_64
    return state ^ (state >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(bits_B: Tensor, count: int) -> Tensor:
    """Logical right shift: torch shifts int64 arithmetically."""
    return (bits_B >> count) & ((1 << (64 - count)) - 1)
