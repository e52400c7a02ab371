"""A profile: which upstream release, which kind of input and which rules a compilation goes by.

A profile keeps its meaning for good. Its identity is a digest over what defines it, the verdicts of its
rules on upstream's own tree among them, so that records of different rules are never taken for equal.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from miniverl.compiler import upstream
from miniverl.compiler.judge import Table
from miniverl.compiler.rule import Context
from miniverl.compiler.rules import RL_V09, RL_V09_APPENDED
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

IMPLEMENTATION = "miniverl: one recipe, one device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The version fields name parts that other releases of this profile's rules are compared by."""

    name: str
    schema_version: int
    verl: str
    config_name: str
    input_contract: str
    table: Table
    compiler_version: str
    conformance_version: str
    export_version: str | None

    @property
    def pin(self) -> upstream.Upstream:
        return upstream.PINS[self.verl]


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="verl-rl-v0.9-single-gpu-v5",
            schema_version=1,
            verl="0.9.0",
            config_name="ppo_trainer",
            input_contract="native Hydra: config name and overrides over verl v0.9.0's own config tree",
            table=Table.of([*RL_V09, *RL_V09_APPENDED]),
            compiler_version="rl-native-hydra-v1",
            conformance_version="rl-verl-v0.9-v1",
            export_version=None,
        ),
    )
}
DEFAULT = "verl-rl-v0.9-single-gpu-v5"


def named(name: str | None) -> Profile:
    """The profile of that name, the one for native Hydra input when None; raises WrongCall."""
    if (name or DEFAULT) in PROFILES:
        return PROFILES[name or DEFAULT]
    problem = Problem(
        field="profile",
        value=name,
        origin="--profile",
        reason="there is no such profile",
        fix=did_you_mean(name or "", PROFILES, f"Known: {', '.join(PROFILES)}"),
    )
    raise WrongCall([problem])


def rules_sha256(profile: Profile, nothing_set: Context) -> str:
    """Digest over the table: each pattern in its order, and each verdict on the tree as upstream ships it."""
    patterns = [rule.pattern for rule in profile.table.rules]
    rows: list[Any] = []
    for field, value in sorted(nothing_set.leaves.items()):
        number = profile.table.first_match(field)
        assert number is not None, f"no rule covers {field}"
        verdict = profile.table.rules[number].judge(field, value, nothing_set)
        rows.append(
            [field, number, verdict.classification, verdict.label, verdict.target, verdict.reason]
        )
    return hashlib.sha256(rfc8785.dumps([patterns, rows])).hexdigest()


def identity(profile: Profile, rules_digest: str) -> dict[str, Any]:
    """The profile as records carry it; `digest` is over the RFC 8785 bytes of the other fields."""
    fields: dict[str, Any] = {
        "export_version": profile.export_version,
        "field_rule_digest": rules_digest,
        "implementation": IMPLEMENTATION,
        "loss_conformance_version": profile.conformance_version,
        "native_compiler_version": profile.compiler_version,
        "profile_name": profile.name,
        "profile_schema_version": profile.schema_version,
        "upstream_commit": profile.pin.commit,
        "upstream_repository": profile.pin.repository,
        "upstream_tag": profile.pin.tag,
    }
    return {**fields, "digest": hashlib.sha256(rfc8785.dumps(fields)).hexdigest()}
