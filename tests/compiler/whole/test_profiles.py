"""Profiles: which input each reads, and identities that no change of a rule may alter unseen."""

from collections.abc import Mapping
from typing import Any

import pytest

from miniverl.compiler import profiles
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import parse
from miniverl.compiler.profiles import DEFAULTS, FOREIGN, PROFILES, called, named
from miniverl.engine.problem import WrongCall

FROZEN = {
    "verl-rl-v0.9-single-gpu-v1": "1a6478668e7c7d95383f9d1a3cf63d7fc1b5d5845d726157af0d64ac6f535716",
    "verl-rl-v0.9-single-gpu-v2": "ab16cdb286aced3b3de56e970fd06f1b8c1de9b61b3b4440c5007f181b9ff617",
    "verl-rl-v0.9-single-gpu-v3": "763a8ae7f7de0331003da1f5930056c5837af631bad81227c9fc85dbfbf3097c",
    "verl-rl-v0.9-single-gpu-v4": "810aad484297d2c8f51f63229495e1adb9d1c436d6c7ed4e6c052b72a673943a",
    "verl-rl-v0.9-single-gpu-v5": "a89311de809334d34f912629f29dc59c2aa5680397e62c9a3a6b0cb4462c7d4d",
    "verl-opd-v0.8-single-gpu-v1": "1dacaf109dd3b85b2c29618c82170202cc8dbfe1621500d0fe6490c4557d918d",
    "verl-opd-v0.8-single-gpu-pg-k1-v1": "abec185a0116aaa3ed1bd376c7a81439874c33cc923059b995e860680972e7fb",
}


def defaults(profile: profiles.Profile) -> Mapping[str, Any]:
    return sources.defaults(profile.config_name, version=profile.verl)


@pytest.fixture(scope="module")
def identities() -> dict[str, dict[str, str]]:
    def identity(profile: profiles.Profile) -> dict[str, str]:
        context = profiles.nothing_set(profile, defaults(profile), parse([]))
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
    of_rl = {name: profile for name, profile in PROFILES.items() if "-rl-" in name}
    assert {name[-2:]: profile.input for name, profile in of_rl.items()} == {
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
def test_every_rule_on_top_is_the_first_to_match_some_leaf(name):
    profile = PROFILES[name]
    on_top = len(profile.table.rules) - len(profiles.BASE)
    leaves = {**defaults(profile), **profile.local}
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
