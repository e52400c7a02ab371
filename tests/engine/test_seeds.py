"""Noise is a pure function of its names, the same everywhere."""

import random

import torch

from miniverl.engine import seeds

MASK = (1 << 64) - 1


def splitmix64(state: int) -> tuple[int, int]:
    """The published generator: next state and output (https://prng.di.unimi.it/splitmix64.c)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def test_uniforms_are_the_top_53_bits_of_splitmix64():
    # The first output of splitmix64 with seed 1234567, as its test vectors give it.
    assert splitmix64(1234567)[1] == 6457827717110365317
    uniform = seeds.uniforms(torch.tensor([1234567]), 0).item()
    assert uniform == (6457827717110365317 >> 11) / 2**53


def test_uniforms_equal_the_formula_in_python_integers_for_any_key_and_position():
    rng = random.Random(0)
    keys = [rng.randrange(-(2**63), 2**63) for _ in range(200)]
    positions = [rng.randrange(0, 2**20) for _ in range(200)]
    expected = [
        (splitmix64((key & MASK) ^ position)[1] >> 11) / 2**53
        for key, position in zip(keys, positions, strict=True)
    ]
    assert seeds.uniforms(torch.tensor(keys), torch.tensor(positions)).tolist() == expected


def test_uniforms_lie_in_the_half_open_unit_interval_with_the_moments_of_a_uniform():
    keys_B = torch.tensor([seeds.noise_key(0, prompt, 0, 0) for prompt in range(500)])
    drawn = torch.stack([seeds.uniforms(keys_B, position) for position in range(100)])
    assert drawn.dtype == torch.float64
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # 50 000 numbers: mean 1/2 and variance 1/12 within five standard errors.
    assert abs(drawn.mean().item() - 1 / 2) < 5 * (1 / 12 / 50_000) ** 0.5
    assert abs(drawn.var().item() - 1 / 12) < 5 * (1 / 180 / 50_000) ** 0.5


def test_every_part_of_the_key_changes_it_and_parts_do_not_trade_places():
    parts = [(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    keys = {seeds.noise_key(*part) for part in parts}
    assert len(keys) == len(parts)
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_the_noise_key_is_frozen():
    # Changing the hash would silently resume old runs into other samples.
    assert seeds.noise_key(1, 2, 3, 4) == -3072355124115617029


def test_neighbouring_samples_do_not_correlate():
    keys_B = torch.tensor([seeds.noise_key(7, prompt, 0, 0) for prompt in range(20_000)])
    siblings_B = torch.tensor([seeds.noise_key(7, prompt, 0, 1) for prompt in range(20_000)])
    pairs = torch.stack([seeds.uniforms(keys_B, 5), seeds.uniforms(siblings_B, 5)])
    assert abs(torch.corrcoef(pairs)[0, 1].item()) < 5 / 20_000**0.5


def test_a_generator_depends_on_seed_and_name_only_and_leaves_the_global_one_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = torch.rand(4, generator=seeds.generator(1, "lora:a"))
    again = torch.rand(4, generator=seeds.generator(1, "lora:a"))
    other_name = torch.rand(4, generator=seeds.generator(1, "lora:b"))
    other_seed = torch.rand(4, generator=seeds.generator(2, "lora:a"))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first, again)
    assert not torch.equal(first, other_name)
    assert not torch.equal(first, other_seed)
