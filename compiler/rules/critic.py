"""`critic`: the value model of generalised advantages. Without one, nothing reads this section.

Sources: verl/workers/config/critic.py:40-220, verl/trainer/ppo/v1/trainer_base.py:248-270, :1640-1660,
verl/workers/utils/losses.py:170-215.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Rule,
    Verdict,
    dead,
    lowers,
    notes,
    once,
    only_if,
    reject,
    requires,
    set_in_vain,
)
from miniverl.compiler.rules.limits import is_whole, number, truth, whole
from miniverl.compiler.rules.model import CRITIC_MODEL
from miniverl.compiler.rules.optimizer import optimizer, optimizer_appended
from miniverl.compiler.rules.repeated import (
    checkpoint,
    fsdp,
    keeps_class,
    profiler,
    size_over_all_devices,
)
from miniverl.compiler.rules.switches import estimator, has_critic
from miniverl.compiler.rules.update import (
    aggregation,
    compute_dtype,
    dead_norm,
    mini_batches,
    mixed_precision,
    order_seed,
    parameter_dtype,
)

_FSDP = "critic.fsdp"
_BIN = "critic.update.micro_batch_tokens"
_READ_BIN = "critic.ppo_infer_max_token_len_per_gpu"  # upstream's tree lacks it
_NO_CRITIC = "not read: this launch has no critic"
_SIZES = "how upstream might bound what it scores at once; its default trainer bounds it by tokens"


def _enable(field: str, value: Any, context: Context) -> Verdict:
    """verl/trainer/ppo/utils.py:98."""
    limit = truth(field)
    if value is not None and not limit.accepts(value):
        return reject(limit)
    needs_values = estimator(context) == "gae"
    if has_critic(context):
        return Verdict(
            classification=Class.EXACT,
            reason="null trains a critic where the estimator needs its values"
            if value is None
            else "trains a critic beside the policy",
            label="critic",
            warning=None
            if needs_values
            else f"{field} is set, and the estimator reads no values: the critic is trained in vain",
        )
    if needs_values:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops: generalised advantages need the values of a critic",
            fix=f"Remove {field}, or set algorithm.adv_estimator=grpo",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="no critic: this estimator takes its advantages from rewards alone",
        label="critic",
        target="critic",
        lowered=None,
    )


def _budget(field: str, value: Any, context: Context) -> Verdict:
    """The pin's critic reads another leaf, 32768 unless appended (v1/trainer_base.py:250)."""
    if _READ_BIN in context.leaves:
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason=f"not read: {_READ_BIN} is set",
            warning=set_in_vain(field, context),
        )
    return _read_budget(field, value, context)


def _read_budget(field: str, value: Any, context: Context) -> Verdict:
    limit = whole(field, at_least=1)
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.LOWERED,
        reason="bounds the tokens of one forward of the critic; results do not depend on micro-batches",
        label=_BIN,
        target=_BIN,
        lowered=value,
    )


def _static_bin(field: str, value: Any, context: Context) -> Verdict:
    """Checked for its presence alone (workers/config/critic.py:110)."""
    if context.leaves["critic.use_dynamic_bsz"] is not True and not is_whole(value, 1):
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="with critic.use_dynamic_bsz off, the pin stops unless the size of a micro-batch is set",
            fix=f"Set {field} to a whole number, or critic.use_dynamic_bsz=True",
        )
    return Verdict(classification=Class.LOWERED, reason=_SIZES, label=_BIN)


def _copied(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Leaves that follow the actor's until they are set themselves."""
    return tuple(map(once, rules))


RULES: tuple[Rule, ...] = (
    Rule("critic.enable", _enable),
    *only_if(
        has_critic,
        _NO_CRITIC,
        keeps_class("critic._target_"),
        *optimizer("critic.optim", "critic."),
        *CRITIC_MODEL,
        *_copied(mini_batches("critic", "critic.")),
        order_seed("critic", "critic.mini_batch_seed"),
        lowers(
            "critic.cliprange_value",
            "critic.value_clip",
            "values move from those of the rollout by this much at most",
            to=float,
            limit=number("critic.cliprange_value", "of at least 0", lambda clip: clip >= 0),
        ),
        *_copied(aggregation("critic", "critic.")),
        requires(
            "critic.strategy",
            "fsdp",
            "fsdp2",
            classification=Class.DISTRIBUTED,
            reason="which sharding runs upstream; there is one device here",
            otherwise=Class.UNSUPPORTED,
            because="this tree configures FSDP workers only",
            fix="Set critic.strategy=fsdp",
        ),
        *fsdp(
            _FSDP,
            model_dtype=parameter_dtype(_FSDP, "critic"),
            seed=notes(
                f"{_FSDP}.seed",
                Class.CONFORMANT,
                "upstream leaves a new value head unseeded; here the policy's seed draws it",
                label="seeds.parameters",
            ),
            dtype=compute_dtype(_FSDP, "critic"),
            trains=True,
        ),
        *checkpoint("critic"),
        profiler("critic"),
        notes(
            "critic.use_dynamic_bsz",
            Class.LOWERED,
            "the default trainer bounds a critic's micro-batches by tokens, whatever is asked for",
            label=_BIN,
        ),
        Rule("critic.ppo_max_token_len_per_gpu", _budget),
        Rule("critic.ppo_micro_batch_size_per_gpu", _static_bin),
        size_over_all_devices("critic.ppo_micro_batch_size"),
        *(
            notes(f"critic.{name}", Class.LOWERED, _SIZES)
            for name in (
                "forward_micro_batch_size",
                "forward_micro_batch_size_per_gpu",
                "forward_max_token_len_per_gpu",
            )
        ),
        dead(
            "critic.ulysses_sequence_parallel_size", "nothing reads it: critic.fsdp has one that is"
        ),
        dead_norm("critic"),
        dead("critic.rollout_n", "nothing reads this copy of rollout.n"),
    ),
)

APPENDED: tuple[Rule, ...] = only_if(
    has_critic,
    _NO_CRITIC,
    optimizer_appended("critic.optim", "critic."),
    *mixed_precision(_FSDP, "critic"),
    Rule(_READ_BIN, _read_budget),
)
