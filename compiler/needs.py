"""What a launch needs besides itself: bindings without which nothing runs, and numbers that it leaves open."""

from collections.abc import Collection, Iterator, Mapping

from miniverl.compiler import bound_quantization
from miniverl.compiler.bindings import teacher_name
from miniverl.compiler.rule import Context
from miniverl.compiler.rules.switches import (
    critic_shares_weights,
    distils,
    has_critic,
    has_reward_model,
    schedule_kind,
    scored_by_function,
    starts_from_adapter,
    validates,
)
from miniverl.compiler.rules.teachers import teacher_entries
from miniverl.engine.problem import Problem

_OPTIMIZERS = ("actor_rollout_ref.actor.optim", "critic.optim")
# Which some launches do not have.
_ROLES = ("adapter", "critic", "reward", "reward_function", "reward_model", "teacher")
_STEPS = "trainer.total_training_steps"


def needed_bindings(context: Context) -> tuple[str, ...]:
    """Names of the bindings that a run of the launch takes; a critic may be the bound model itself."""
    teachers = teacher_entries(context) if distils(context) else ()
    wanted = {
        "model": True,
        "adapter": starts_from_adapter(context),
        "train": True,
        "reward": not has_reward_model(context) and not scored_by_function(context),
        "reward_function": scored_by_function(context),
        "reward_model": has_reward_model(context),
        "validation": validates(context),
        "critic": has_critic(context) and not critic_shares_weights(context),
        **{teacher_name(entry.key): True for entry in teachers},
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def bound_in_vain(bound: Collection[str], context: Context) -> tuple[str, ...]:
    """Warnings on scorers and models that are bound to roles which the launch does not have."""
    has = {"critic"} if has_critic(context) else set()
    has.update(needed_bindings(context))
    return tuple(
        f"{name} is bound, and the launch has none of that name: nothing reads it"
        for name in sorted(set(bound) - has)
        if name.partition(".")[0] in _ROLES
    )


def quantised(bound: Mapping[str, str], context: Context) -> Iterator[str]:
    """Warnings on weights that are bound to be in 4 bits: what that changes, or that nothing reads it."""
    has = {
        bound_quantization.TEACHER: distils(context),
        bound_quantization.REWARD_MODEL: has_reward_model(context),
    }
    for name, change in bound_quantization.changes(context, bound):
        in_vain = f"{name} is bound, and the launch has no such model: nothing reads it"
        yield change if has.get(name, True) else in_vain


def required_input(context: Context) -> tuple[Problem, ...]:
    """What only the user can state, since the launch leaves it open and nothing here may guess it."""
    return tuple(_required(context))


def _required(context: Context) -> Iterator[Problem]:
    yield from bound_quantization.problems(context)
    leaves = context.leaves
    trained = _OPTIMIZERS if has_critic(context) else _OPTIMIZERS[:1]
    is_known = leaves[_STEPS] is not None or not leaves["data.filter_overlong_prompts"]
    if not is_known and any(_counts_steps(optim, leaves) for optim in trained):
        yield Problem(
            field=_STEPS,
            value=None,
            origin="default",
            reason="the learning rate follows the number of steps, and that depends on how many prompts are "
            "short enough, which only tokenising them shows",
            fix=f"State {_STEPS}",
        )
    critic = "critic.model.path"
    if has_critic(context) and context.is_default(critic) and not critic_shares_weights(context):
        yield Problem(
            field=critic,
            value=leaves[critic],
            origin="default",
            reason="upstream would start the critic from its own default model, whatever the policy is",
            fix=f"State {critic}, such as {critic}={leaves['actor_rollout_ref.model.path']}",
        )


def _counts_steps(optim: str, leaves: Mapping[str, object]) -> bool:
    """A cosine does, and a warm-up that is a share of all steps."""
    steps, ratio = leaves[f"{optim}.lr_warmup_steps"], leaves[f"{optim}.lr_warmup_steps_ratio"]
    warms_up_by_share = type(steps) is int and steps <= 0 and type(ratio) in (int, float)
    return schedule_kind(leaves, optim) == "cosine" or (warms_up_by_share and bool(ratio))
