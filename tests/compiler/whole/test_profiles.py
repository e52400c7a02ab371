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
    "verl-rl-v0.9-single-gpu-v1": "f1b61e9223690b071c993a461256ebd2a491ea02f5050247587df6b58fe48720",
    "verl-rl-v0.9-single-gpu-v2": "22a051c99e8b8e61d3e39c2cbb9f6d91c0da6257ad14aea944c986ec35b06ad8",
    "verl-rl-v0.9-single-gpu-v3": "2ef77467ef75f73b4fc2463eb539e3801a13b60745a448f71752d2556ec32114",
    "verl-rl-v0.9-single-gpu-v4": "a7def4bcf0ab643bdf4a2fcb247d73d9a72a285f98cc7df5bc082990511309cf",
    "verl-rl-v0.9-single-gpu-v5": "41b3031214f7ce1fd855bc46c4602aa8b597298b51f5b179dc8eb45a09b9214e",
    "verl-opd-v0.8-single-gpu-v1": "048ca341b136fe4e425a75aa26c997b2ac46671360980b2a3079441d6aad4de1",
    "verl-opd-v0.8-single-gpu-pg-k1-v1": "3b470f5b34ee8551d70668e963d82764ef26983c40a5a22e9c8569235049d99c",
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
