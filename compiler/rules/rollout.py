"""`actor_rollout_ref.rollout`: how responses are sampled, in training and in validation.

The settings of the inference server stand in server.py. Sources: verl/trainer/ppo/v1/agent_loop_tq.py:60-120,
verl/workers/rollout/vllm_rollout/vllm_async_server.py:545-580.
"""

from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    dead,
    lowers,
    notes,
    only_if,
    reject,
)
from miniverl.compiler.rules.limits import is_whole, number, one_of, seed, truth, whole
from miniverl.compiler.rules.repeated import keeps_class
from miniverl.compiler.rules.server import SERVER, SERVER_APPENDED
from miniverl.compiler.rules.switches import estimator, validates

_ROLLOUT = "actor_rollout_ref.rollout"
_VAL = f"{_ROLLOUT}.val_kwargs"
# Estimators that compare nothing within a group, or whiten over the batch and count zeros over it.
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus", "gpg", "reinforce_plus_plus_baseline")


def _samples(field: str, value: Any, context: Context) -> Verdict:
    limit = whole(field, at_least=1)
    if not limit.accepts(value):
        return reject(limit)
    alone = value == 1 and estimator(context) not in _WITHOUT_GROUPS
    leads_to = "nothing" if estimator(context) == "rloo_vectorized" else "its plain reward"
    return Verdict(
        classification=Class.EXACT,
        reason="responses to each prompt, which make up its group",
        label="rollout.samples_per_prompt",
        target="rollout.samples_per_prompt",
        lowered=value,
        warning=f"each response is a group of its own: its advantage is {leads_to}"
        if alone
        else None,
    )


def _temperature(field: str, value: Any, context: Context) -> Verdict:
    """Upstream divides by 1e-8 where it is 0 (fsdp/transformer_impl.py, prepare_model_outputs)."""
    limit = number(field, "of at least 0", lambda temperature: temperature >= 0)
    if not limit.accepts(value):
        return reject(limit)
    return Verdict(
        classification=Class.EXACT,
        reason="divides the logits that are sampled from, and those of every log-probability trained on",
        label="rollout.temperature",
        target="rollout.temperature",
        lowered=float(value),
        warning="at 0 all responses to a prompt are the same, and teach nothing"
        if value == 0
        else None,
    )


def _prompt_length(field: str, value: Any, context: Context) -> Verdict:
    """Upstream cuts prompts to this, and drops the ones above data.max_prompt_length."""
    bound = context.leaves["data.max_prompt_length"]
    if value == bound:
        return Verdict(
            classification=Class.EXACT,
            reason="the same bound as data.max_prompt_length, which states it",
            label="data.max_prompt_tokens",
        )
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason=f"differs from data.max_prompt_length, which is {bound}; prompts have one bound here",
        fix=f"Set {field}={bound}, or remove it",
    )


def _sampling_dtype(field: str, value: Any, context: Context) -> Verdict:
    """`auto` is the dtype that the weights were saved in."""
    limit = one_of(
        field,
        "bfloat16",
        "float16",
        "float32",
        "auto",
        because="no inference server of the pin knows this dtype",
    )
    if not limit.accepts(value):
        return reject(limit)
    bound = context.bindings["compute_dtype"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="the dtype of upstream's server; here sampling and scoring share the bound compute_dtype",
        label="rollout.dtype",
        target="rollout.dtype",
        lowered=bound,
        warning=None if bound == value else f"samples in {bound} here, in {value} upstream",
    )


def _top_k(field: str) -> Limit:
    return Limit(
        accepts=lambda value: is_whole(value, -1),
        because="keeps this many of the likeliest tokens; -1 and 0 keep all",
        fix=f"Set {field} to a whole number of at least 1, or to -1",
    )


def _top_p(field: str) -> Limit:
    return number(field, "above 0 and at most 1", lambda mass: 0 < mass <= 1)


def _validation_sampling(field: str, value: Any, context: Context) -> Verdict:
    """Checked once (verl/utils/config.py:185) and never used: the temperature alone decides."""
    if value is True and not context.leaves[f"{_ROLLOUT}.temperature"]:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="the pin stops at sampled validation where rollout.temperature is 0",
            fix=f"Set {field}=False, or {_ROLLOUT}.temperature above 0",
        )
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="not read: val_kwargs.temperature decides, and 0 is greedy",
        warning=None
        if context.is_default(field)
        else f"{field} is set, and nothing reads it: {_VAL}.temperature decides",
    )


RULES: tuple[Rule, ...] = (
    keeps_class(f"{_ROLLOUT}._target_"),
    *SERVER,
    Rule(f"{_ROLLOUT}.n", _samples),
    Rule(f"{_ROLLOUT}.temperature", _temperature),
    lowers(
        f"{_ROLLOUT}.top_k",
        "rollout.top_k",
        "samples from this many of the likeliest tokens; -1 is written 0 here",
        to=lambda value: max(value, 0),
        limit=_top_k(f"{_ROLLOUT}.top_k"),
    ),
    lowers(
        f"{_ROLLOUT}.top_p",
        "rollout.top_p",
        "samples from the likeliest tokens up to this mass",
        to=float,
        limit=_top_p(f"{_ROLLOUT}.top_p"),
    ),
    dead(f"{_ROLLOUT}.do_sample", "nothing reads it: the temperature decides, and 0 is greedy"),
    lowers(
        f"{_ROLLOUT}.ignore_eos",
        "rollout.ignores_eos",
        "whether responses go on to the token limit, past their end",
        limit=truth(f"{_ROLLOUT}.ignore_eos"),
    ),
    Rule(f"{_ROLLOUT}.prompt_length", _prompt_length),
    lowers(
        f"{_ROLLOUT}.response_length",
        "rollout.max_response_tokens",
        "cuts responses at this many tokens",
        limit=whole(f"{_ROLLOUT}.response_length", at_least=1),
    ),
    Rule(f"{_ROLLOUT}.dtype", _sampling_dtype),
    lowers(
        f"{_ROLLOUT}.seed",
        "seeds.sampling",
        "seeds upstream's server once; here each sample draws noise of its own from it",
        classification=Class.CONFORMANT,
        limit=seed(f"{_ROLLOUT}.seed"),
    ),
    notes(
        f"{_ROLLOUT}.full_determinism",
        Class.CONFORMANT,
        "every run here is seeded and repeats itself, asked for or not",
        label="determinism",
    ),
    keeps_class(f"{_VAL}._target_"),
    Rule(f"{_VAL}.do_sample", _validation_sampling),
    *only_if(
        validates,
        "not read: this launch never validates",
        lowers(
            f"{_VAL}.n",
            "validation.samples_per_prompt",
            "responses to each prompt of a validation",
            limit=whole(f"{_VAL}.n", at_least=1),
        ),
        lowers(
            f"{_VAL}.temperature",
            "validation.temperature",
            "divides the logits that a validation samples from; 0 is greedy",
            to=float,
            limit=number(f"{_VAL}.temperature", "of at least 0", lambda value: value >= 0),
        ),
        lowers(
            f"{_VAL}.top_p",
            "validation.top_p",
            "a validation samples from the likeliest tokens up to this mass",
            to=float,
            limit=_top_p(f"{_VAL}.top_p"),
        ),
        lowers(
            f"{_VAL}.top_k",
            "validation.top_k",
            "a validation samples from this many of the likeliest tokens; -1 is written 0 here",
            to=lambda value: max(value, 0),
            limit=_top_k(f"{_VAL}.top_k"),
        ),
    ),
)

APPENDED: tuple[Rule, ...] = SERVER_APPENDED
