"""A profile: which upstream release, which kind of input and which rules a compilation goes by.

A profile keeps its meaning for good. Its identity is a digest over what defines it, the verdicts of its
rules on upstream's own tree among them, so that records of different rules are never taken for equal.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import rfc8785

from miniverl.compiler import upstream
from miniverl.compiler.bindings import Bindings
from miniverl.compiler.judge import Table
from miniverl.compiler.rule import Context, Rule
from miniverl.compiler.rules import RL_V09, RL_V09_APPENDED, published, release_v08
from miniverl.compiler.rules.local import LOCAL
from miniverl.compiler.rules.local import RULES as LOCAL_RULES
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

Input = Literal["hydra", "resolved", "subset"]
IMPLEMENTATION = "miniverl: one recipe, one device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The version fields name parts that other releases of this profile's rules are compared by."""

    name: str
    schema_version: int
    verl: str
    config_name: str
    input: Input
    input_contract: str
    table: Table
    fields: tuple[str, ...]  # patterns of what may be stated
    local: Mapping[str, Any]  # leaves that upstream's tree does not have, and what they hold unset
    compiler_version: str
    conformance_version: str
    export_version: str | None

    def admits(self, field: str) -> bool:
        return any(fnmatchcase(field, pattern) for pattern in self.fields)

    @property
    def pin(self) -> upstream.Upstream:
        return upstream.PINS[self.verl]


BASE: tuple[Rule, ...] = (*RL_V09, *RL_V09_APPENDED)


def _rl(
    version: int,
    kind: Input,
    *,
    contract: str,
    compiler_version: str,
    overlay: tuple[Rule, ...] = (),
    local: tuple[Rule, ...] = (),
) -> Profile:
    """A profile of v0.9's reinforcement learning: the one table, with what it says otherwise on top."""
    return Profile(
        name=f"verl-rl-v0.9-single-gpu-v{version}",
        schema_version=1,
        verl="0.9.0",
        config_name="ppo_trainer",
        input=kind,
        input_contract=contract,
        table=Table.of([*local, *overlay, *BASE]),
        fields=tuple(rule.pattern for rule in (*local, *overlay)) if local else ("*",),
        local=LOCAL if local else {},
        compiler_version=compiler_version,
        conformance_version="rl-verl-v0.9-v1",
        export_version=None,
    )


def _opd(name: str, other: str, *, loss_mode: str, by_policy_gradient: bool) -> Profile:
    """A profile of v0.8's on-policy distillation: the one table, with what that release means otherwise on top."""
    overlay = release_v08.distils_only(
        BASE, loss_mode=loss_mode, by_policy_gradient=by_policy_gradient, other=_OPD + other
    )
    how = "a policy gradient" if by_policy_gradient else "the loss itself"
    return Profile(
        name=_OPD + name,
        schema_version=1,
        verl=release_v08.VERL,
        config_name="ppo_trainer",
        input="hydra",
        input_contract="native Hydra: config name and overrides over verl v0.8.0's own config tree, for learning from "
        f"a teacher by {loss_mode} and {how}",
        table=Table.of([*overlay, *BASE]),
        fields=("*",),
        local={},
        compiler_version="opd-native-hydra-v1",
        conformance_version="opd-verl-v0.8-v1",
        export_version=None,
    )


_OPD = "verl-opd-v0.8-single-gpu-"
_TOP_K, _PG_K1 = "v1", "pg-k1-v1"
PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        _rl(
            1,
            "subset",
            contract="documented subset of verl v0.9.0 with a miniverl block: group-relative updates on fresh "
            "samples, mini-batches in trajectories",
            compiler_version="rl-subset-v1",
            overlay=published.first_subset(BASE),
            local=LOCAL_RULES,
        ),
        _rl(
            2,
            "subset",
            contract="documented subset of verl v0.9.0 with a miniverl block: critic, rewards, KL and entropy "
            "too, mini-batches in trajectories",
            compiler_version="rl-subset-v2",
            overlay=published.second_subset(BASE),
            local=LOCAL_RULES,
        ),
        _rl(
            3,
            "subset",
            contract="documented subset of verl v0.9.0 with a miniverl block: critic, rewards, KL and entropy "
            "too, mini-batches in prompts",
            compiler_version="rl-subset-v3",
            overlay=published.third_subset(BASE),
            local=LOCAL_RULES,
        ),
        _rl(
            4,
            "resolved",
            contract="one file with a whole resolved config of verl v0.9.0",
            compiler_version="rl-resolved-v1",
            overlay=published.resolved(BASE),
        ),
        _rl(
            5,
            "hydra",
            contract="native Hydra: config name and overrides over verl v0.9.0's own config tree",
            compiler_version="rl-native-hydra-v1",
        ),
        _opd(_TOP_K, _PG_K1, loss_mode="forward_kl_topk", by_policy_gradient=False),
        _opd(_PG_K1, _TOP_K, loss_mode="k1", by_policy_gradient=True),
    )
}
DEFAULTS: Mapping[Input, str] = {
    "hydra": "verl-rl-v0.9-single-gpu-v5",
    "resolved": "verl-rl-v0.9-single-gpu-v4",
    "subset": "verl-rl-v0.9-single-gpu-v3",
}

FOREIGN: Mapping[str, str] = {
    "8bbff2027f44d9601d3ed3143621a60280a1bacafd1b08d2ad95bf4d9caac3ca": "identity of "
    "verl-opd-v0.8-single-gpu-pg-k1-v1",
    "d53a91b0094a12428006d973683ac85e91fc6b55f47dc33636ce1d2e661b7e57": "rules of "
    "verl-opd-v0.8-single-gpu-pg-k1-v1",
    "d37d10c946993d1da840eda7157e4577fcd7c77ae238852c84b03298097e660f": "rules of "
    "verl-rl-v0.9-single-gpu-v1",
}
"""Digests that an earlier program published under names that profiles here have too: never ours."""


def named(name: str | None, kind: Input = "hydra") -> Profile:
    """The profile of that name, else the default one for such an input.

    Raises WrongCall for an unknown name, and for a profile of another input.
    """
    chosen = called(name or DEFAULTS[kind])
    if chosen.input != kind:
        reason = f"it reads {_INPUTS[chosen.input]}, and this is {_INPUTS[kind]}"
        fix = f"Leave --profile out, which takes {DEFAULTS[kind]}"
        raise WrongCall([_problem(name, reason, fix)])
    return chosen


def called(name: str) -> Profile:
    """The profile of that name, whatever it reads; raises WrongCall for an unknown one."""
    if name not in PROFILES:
        fix = did_you_mean(name, PROFILES, f"Known: {', '.join(PROFILES)}")
        raise WrongCall([_problem(name, "there is no such profile", fix)])
    return PROFILES[name]


_INPUTS: Mapping[Input, str] = {
    "hydra": "a launch: a config name and overrides",
    "resolved": "a file with a whole resolved config",
    "subset": "a subset with a miniverl block",
}


def nothing_set(profile: Profile, defaults: Mapping[str, Any], bindings: Bindings) -> Context:
    """The tree as upstream ships it, and as the profile adds to it."""
    return Context(
        leaves={**defaults, **profile.local}, defaults=defaults, bindings=bindings.for_rules()
    )


def rules_sha256(profile: Profile, nothing_set: Context) -> str:
    """Digest over the table: each pattern in its order, and each verdict on the tree as upstream ships it."""
    patterns = [rule.pattern for rule in profile.table.rules]
    rows: list[Any] = []
    for field, value in sorted(nothing_set.leaves.items()):
        number = profile.table.first_match(field)
        assert number is not None, f"no rule covers {field}"
        verdict = profile.table.judge(field, value, nothing_set)
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


def _problem(name: str | None, reason: str, fix: str) -> Problem:
    return Problem(field="profile", value=name, origin="--profile", reason=reason, fix=fix)
