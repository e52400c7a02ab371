"""`miniverl`: the block of a documented subset that says how one device runs it.

What this engine does not run is accepted and said (`not_run`): it is no fault of the config.
"""

import re
from collections.abc import Mapping
from typing import Any

from miniverl.compiler.bindings import DTYPES
from miniverl.compiler.bound_reward import PROVIDERS
from miniverl.compiler.rule import Class, Context, Limit, Rule, Verdict, reject
from miniverl.compiler.rules.limits import whole
from miniverl.compiler.rules.published import BACKEND
from miniverl.compiler.suggest import did_you_mean

_REVISION = re.compile(r"[0-9a-f]{40}")
_BATCH = "miniverl.update.trajectory_batch_size"
_STUDENT = "models.student"

LOCAL: Mapping[str, Any] = {
    "miniverl.actor.dtype": "auto",
    "miniverl.actor.lora_enabled": None,  # by lora_rank
    "miniverl.actor.quantization": "none",
    "miniverl.actor.revision": None,
    "miniverl.actor.tokenizer_revision": None,
    "miniverl.memory.strategy": None,  # planned
    "miniverl.reward.provider": None,  # bound
    BACKEND: None,  # the own sampler
    _BATCH: 1,
}
"""Every leaf of the block, and what holds where a subset leaves it out."""


def _one_of(
    field: str, label: str, *accepted: Any, reason: str, not_run: Mapping[Any, str]
) -> Rule:
    """Accepts the named values; those in `not_run` without running them."""
    names = [str(one) for one in accepted if one is not None]
    known = f"Known: {', '.join(names)}"

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not any(value == one and type(value) is type(one) for one in accepted):
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="there is none of this name",
                label=label,
                fix=did_you_mean(value, names, known) if isinstance(value, str) else known,
            )
        return Verdict(
            classification=Class.EXACT, reason=reason, label=label, not_run=not_run.get(value)
        )

    return Rule(field, judge)


def _revision(name: str) -> Rule:
    """The bound folder is named by its content; a revision says where that content came from."""
    limit = Limit(
        accepts=lambda value: (
            value is None or (isinstance(value, str) and _REVISION.fullmatch(value) is not None)
        ),
        because="a branch or a tag moves; only a commit names one snapshot",
        fix=f"Set miniverl.actor.{name} to the 40 hexadecimal digits of a commit",
    )

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not limit.accepts(value):
            return reject(limit)
        other = context.leaves["miniverl.actor.revision"]
        apart = name == "tokenizer_revision" and value is not None and value != other
        return Verdict(
            classification=Class.EXACT,
            reason="the snapshot that the bound folder was taken from",
            label=f"{_STUDENT}.{name}",
            not_run="weights and tokenizer come from one bound folder" if apart else None,
        )

    return Rule(f"miniverl.actor.{name}", judge)


def _backend(field: str, value: Any, context: Context) -> Verdict:
    if value not in (None, "hf_cached"):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="there is no local sampler of this name",
            label="rollout.backend",
            fix=f"Set {field}=hf_cached, or remove it",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="names the local sampler; the policy samples here, one token after another from its cache",
        label="rollout.backend",
        warning=None
        if value is None
        else "names a sampler of another program: the same distribution, not the same random numbers",
    )


def _lora_enabled(field: str, value: Any, context: Context) -> Verdict:
    if value is not None and type(value) is not bool:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="it is either on or off",
            label=f"{_STUDENT}.lora.enabled",
            fix=f"Set {field} to true or false",
        )
    if value is True and context.leaves["actor_rollout_ref.model.lora_rank"] == 0:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="there is no adapter of rank 0",
            label=f"{_STUDENT}.lora.enabled",
            fix="Set actor_rollout_ref.model.lora_rank to at least 1",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="whether an adapter is trained, or every weight",
        label=f"{_STUDENT}.lora.enabled",
    )


def _batch(field: str, value: Any, context: Context) -> Verdict:
    if not whole(field, at_least=1).accepts(value):
        return reject(whole(field, at_least=1))
    return Verdict(
        classification=Class.EXACT,
        reason="responses of one forward and backward; results do not depend on it",
        label="train.trajectory_batch_size",
    )


RULES: tuple[Rule, ...] = (
    _one_of(
        "miniverl.actor.dtype",
        f"{_STUDENT}.dtype",
        "auto",
        *DTYPES,
        reason="the dtype of scoring and update; auto is upstream's, or the bound one",
        not_run={},
    ),
    Rule("miniverl.actor.lora_enabled", _lora_enabled),
    _one_of(
        "miniverl.actor.quantization",
        f"{_STUDENT}.quantization",
        "none",
        None,
        "nf4",
        reason="how the frozen weights are stored while an adapter is trained",
        not_run={},
    ),
    _revision("revision"),
    _revision("tokenizer_revision"),
    _one_of(
        "miniverl.memory.strategy",
        "memory.strategy",
        None,
        "resident",
        "swap",
        "shared",
        reason="where parts lie between their phases, which wins over upstream's hints of offloading and memory; "
        "results do not depend on it",
        not_run={},
    ),
    _one_of(
        "miniverl.reward.provider",
        "reward.provider",
        None,
        *PROVIDERS,
        reason="what scores a response, unless another scorer is bound",
        not_run={},
    ),
    Rule(BACKEND, _backend),
    Rule(_BATCH, _batch),
)
