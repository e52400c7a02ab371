"""What verl v0.8.0 means otherwise than the table of v0.9.0, where a launch learns from a teacher alone.

Its trainer is the older one (verl/trainer/ppo/ray_trainer.py at v0.8.0). Where that depends on micro-batches, a run
here does not, as v0.9.0 does not either, and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from miniverl.compiler import legacy
from miniverl.compiler.judge import Table
from miniverl.compiler.lacks import LACKS
from miniverl.compiler.rule import REJECTING, Class, Context, Rule, Verdict, dead
from miniverl.compiler.rules.limits import is_whole
from miniverl.compiler.rules.published import narrowed
from miniverl.compiler.rules.repeated import behind_switch, keeps_class, off

VERL = "0.8.0"
_LOSS = "distillation.distillation_loss"
_SKIP = "actor_rollout_ref.rollout.skip"
_NORMALISER = (
    f"{_LOSS}.loss_mode: verl v0.8.0 divides the first micro-batch of each mini-batch by the token count of the mini-batch before "
    "it, and the first one of all by its own; here, as in v0.9.0, every micro-batch is divided by the count of its "
    "own mini-batch"
)


def distils_only(
    base: Sequence[Rule], *, loss_mode: str, by_policy_gradient: bool, other: str
) -> tuple[Rule, ...]:
    """The rules on top of v0.9.0's for one way to learn from a teacher; `other` is the profile of the other way."""
    table = Table.of(base)
    accepts: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("distillation.enabled", (True,)),
        (f"{_LOSS}.use_task_rewards", (False,)),
        (f"{_LOSS}.use_policy_gradient", (by_policy_gradient,)),
    )
    (loss,) = narrowed(base, other, ((f"{_LOSS}.loss_mode", (loss_mode,)),))
    return (
        *narrowed(base, other, accepts),
        _then(loss.pattern, loss.judge, _normaliser),
        Rule("distillation.teacher_models.*.inference.temperature", _temperature),
        _then("trainer.balance_batch", table.judge, _order),
        *map(_moved, ("custom_reward_function.*", "reward_model.*", "sandbox_fusion.*")),
        *(
            dead(
                f"{role}.checkpoint.mbridge_config", "not read: only Megatron's checkpoints have it"
            )
            for role in ("actor_rollout_ref.actor", "critic")
        ),
        keeps_class(f"{_SKIP}._target_"),
        off(
            f"{_SKIP}.enable",
            False,
            what="replaying dumped rollouts",
            because="rollouts are sampled here, never replayed",
            fix=f"Set {_SKIP}.enable=False",
        ),
        behind_switch(f"{_SKIP}.*", f"{_SKIP}.enable"),
        *(_lacking(field, table) for field in LACKS[VERL]),
    )


Judge = Callable[[str, Any, Context], Verdict]


def _then(pattern: str, judge: Judge, also: Callable[[Verdict, Context], Verdict]) -> Rule:
    """What the judge says, and what v0.8.0 adds to it where it is accepted."""

    def judged(field: str, value: Any, context: Context) -> Verdict:
        verdict = judge(field, value, context)
        return verdict if verdict.classification in REJECTING else also(verdict, context)

    return Rule(pattern, judged)


def _normaliser(verdict: Verdict, context: Context) -> Verdict:
    """Executed at v0.8.0: a mini-batch that should give 0.11628 gives 0.31009 there."""
    if context.leaves["distillation.enabled"] is not True:
        return verdict
    label = "distillation.loss, by the tokens of its own mini-batch"
    return replace(verdict, classification=Class.CONFORMANT, label=label, warning=_NORMALISER)


def _order(verdict: Verdict, context: Context) -> Verdict:
    """The older trainer sorts a batch by length before it cuts it into mini-batches."""
    prompts = context.leaves["data.train_batch_size"]
    mini_batch = context.leaves["actor_rollout_ref.actor.ppo_mini_batch_size"]
    is_cut = is_whole(prompts, 1) and is_whole(mini_batch, 1) and mini_batch < prompts
    if not is_cut or context.leaves["trainer.balance_batch"] is not True:
        return verdict
    said = (
        "trainer.balance_batch: v0.8.0 sorts a batch by length before it cuts it into mini-batches, which then hold "
        "other responses than here, where they keep their order"
    )
    return replace(verdict, warning=said)


def _temperature(field: str, value: Any, context: Context) -> Verdict:
    if value == 1 or context.leaves["distillation.enabled"] is not True:
        return Verdict(
            classification=Class.INFORMATIONAL, reason="a teacher scores at temperature 1"
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="v0.8.0 stops: its teachers score at temperature 1 only, and this follows rollout.temperature",
        fix=f"Set {field}=1.0",
    )


def _moved(pattern: str) -> Rule:
    """v0.8.0 still moves these keys to where v0.9.0 reads them (verl/trainer/main_ppo.py at v0.8.0)."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value is None:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="an older name, not set, as upstream's default",
            )
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="an older name, which v0.8.0 moves to its heir before it trains; here it is read there only",
            fix=f"Set {legacy.heir(field) or f'reward.{field}'} in its place",
        )

    return Rule(pattern, judge)


def _lacking(field: str, table: Table) -> Rule:
    """A leaf that v0.8.0 does not have: what the later table reads there, and nobody may set."""
    held = LACKS[VERL][field]

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value == held and type(value) is type(held):
            return table.judge(field, value, context)
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="no leaf of v0.8.0's tree, and nothing there reads it",
            fix=f"Remove {field}",
        )

    return Rule(field, judge)
