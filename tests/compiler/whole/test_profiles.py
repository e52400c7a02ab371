"""Profiles: which input each reads, and identities that no change of a rule may alter unseen."""

import pytest

from miniverl.compiler import profiles
from miniverl.compiler.bindings import parse
from miniverl.compiler.profiles import DEFAULTS, FOREIGN, PROFILES, called, named
from miniverl.engine.problem import WrongCall

FROZEN = {
    "verl-rl-v0.9-single-gpu-v1": "30392c7f5a85f8378c4e0d5f9b2522be88587e69b55008aa1ead0585c72fe36c",
    "verl-rl-v0.9-single-gpu-v2": "95a8a6c284648be3ce114ebdd61e5067f603857fc8c46b98aae1390941f80bfc",
    "verl-rl-v0.9-single-gpu-v3": "a6f843f19a9162d3a14d428d852396924375be41c2384e43412ffc8a028d9ce5",
    "verl-rl-v0.9-single-gpu-v4": "3cff0c0f6953e4cf690604afbf656666d923148c5a7df522710877970ba9e982",
    "verl-rl-v0.9-single-gpu-v5": "27aaeee19c87fb6e0ef0438d449e0d4efd0573e76a134be9c2f3876e5ad96797",
}


@pytest.fixture(scope="module")
def identities(grpo) -> dict[str, dict[str, str]]:
    def identity(profile: profiles.Profile) -> dict[str, str]:
        context = profiles.nothing_set(profile, grpo.defaults, parse([]))
        return dict(profiles.identity(profile, profiles.rules_sha256(profile, context)))

    return {name: identity(profile) for name, profile in PROFILES.items()}


def test_identities_are_frozen(identities):
    """A changed digest is another meaning: state it here, and bump the profile where it was released."""
    assert {name: one["digest"] for name, one in identities.items()} == FROZEN


def test_no_identity_is_one_that_an_earlier_program_published(identities):
    ours = {one[key] for one in identities.values() for key in ("digest", "field_rule_digest")}
    assert ours.isdisjoint(FOREIGN)
    assert len(ours) == 2 * len(PROFILES)


def test_each_input_has_its_profile():
    assert {kind: named(None, kind).name for kind in DEFAULTS} == dict(DEFAULTS)
    assert {name[-2:]: profile.input for name, profile in PROFILES.items()} == {
        "v1": "subset",
        "v2": "subset",
        "v3": "subset",
        "v4": "resolved",
        "v5": "hydra",
    }


def test_a_profile_of_another_input_is_a_wrong_call():
    with pytest.raises(WrongCall, match="it reads a subset with a miniverl block"):
        named("verl-rl-v0.9-single-gpu-v1", "hydra")


def test_an_unknown_profile_gets_the_nearest_name():
    with pytest.raises(WrongCall, match=r"Did you mean verl-rl-v0\.9-single-gpu-v4\?"):
        called("verl-rl-v0.9-single-gpu-v4.")


@pytest.mark.parametrize("name", PROFILES)
def test_every_rule_on_top_is_the_first_to_match_some_leaf(grpo, name):
    profile = PROFILES[name]
    on_top = len(profile.table.rules) - len(profiles.BASE)
    leaves = {**grpo.defaults, **profile.local}
    used = {profile.table.first_match(field) for field in leaves}
    unused = [
        rule.pattern
        for number, rule in enumerate(profile.table.rules[:on_top])
        if number not in used
    ]
    assert unused == []
    assert [field for field in leaves if profile.table.first_match(field) is None] == []


def test_a_subset_admits_its_block_and_what_it_documents():
    first, third = (PROFILES[f"verl-rl-v0.9-single-gpu-v{number}"] for number in (1, 3))
    assert first.admits("miniverl.actor.dtype")
    assert not first.admits("critic.optim.lr")
    assert third.admits("critic.optim.lr")
    assert not third.admits("ray_kwargs.ray_init.num_cpus")
