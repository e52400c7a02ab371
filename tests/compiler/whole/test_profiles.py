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
    "verl-rl-v0.9-single-gpu-v1": "9c243b3271cd093afcaa7d5dd02ed3a3542ef53e414632596de060d9b592ec13",
    "verl-rl-v0.9-single-gpu-v2": "c81705d59a2d73b439f12d1d388959094653d194bb8bb76fea9ef2dce7524719",
    "verl-rl-v0.9-single-gpu-v3": "cceb4af6d9d7eed1e6cc810f56a8af863210c8aa496063c6e44d225c423c1c48",
    "verl-rl-v0.9-single-gpu-v4": "0ec754306f785436295f0d79e03ca2d50c0b99db3bb0371222656177f45d3efc",
    "verl-rl-v0.9-single-gpu-v5": "b50d560a92d9577f79d24381b9401e6bac5458685099273d75582f005336561a",
    "verl-opd-v0.8-single-gpu-v1": "ab34d8aa7f14d2649e160255f88796cb2159a8b9982f9f3d91f229ea08b98707",
    "verl-opd-v0.8-single-gpu-pg-k1-v1": "5ec3a7ddbc6b3c26af7fce8a8035fb639017f85ab13a10403c4b3798a1d7ae2e",
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
