"""The switches of a launch: leaves that decide whether others are read, and which parts run."""

from collections.abc import Mapping
from typing import Any

from miniverl.compiler.rule import Context

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"


def has_critic(context: Context) -> bool:
    """verl/trainer/ppo/utils.py:98: stated, or else needed by generalised advantages alone."""
    enable = context.leaves["critic.enable"]
    return (
        bool(enable) if enable is not None else context.leaves["algorithm.adv_estimator"] == "gae"
    )


def critic_shares_weights(context: Context) -> bool:
    """Where both launch paths are equal, the bound model is the critic's backbone too."""
    return bool(context.leaves["critic.model.path"] == context.leaves[f"{_MODEL}.path"])


def estimator(context: Context) -> object:
    return context.leaves["algorithm.adv_estimator"]


def uses_kl_loss(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.use_kl_loss"] is True and trains_on_rewards(context)


def uses_kl_in_reward(context: Context) -> bool:
    return context.leaves["algorithm.use_kl_in_reward"] is True


def needs_reference(context: Context) -> bool:
    """verl/trainer/ppo/utils.py:79."""
    return uses_kl_loss(context) or uses_kl_in_reward(context)


def uses_lora(context: Context, model: str = _MODEL) -> bool:
    rank = context.leaves[f"{model}.lora_rank"]
    return type(rank) is int and rank > 0


def starts_from_adapter(context: Context) -> bool:
    """With lora_rank 0 the pin never loads it (workers/engine/fsdp/transformer_impl.py:323)."""
    return uses_lora(context) and context.leaves[f"{_MODEL}.lora_adapter_path"] is not None


def has_reference_worker(context: Context) -> bool:
    """With LoRA the reference is the actor without its adapter (v1/trainer_base.py:744)."""
    return needs_reference(context) and not uses_lora(context)


def bins_dynamically(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.use_dynamic_bsz"] is True


def shuffles_mini_batches(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.shuffle"] is True


def has_reward_model(context: Context) -> bool:
    return context.leaves["reward.reward_model.enable"] is True


def takes_reward_function(context: Context) -> bool:
    """Whether the launch names one of its own."""
    return context.leaves["reward.custom_reward_function.path"] is not None


def scored_by_function(context: Context) -> bool:
    """The bound function; or the launch's own, unless a scorer is bound in its place."""
    if has_reward_model(context):
        return False
    names_one = takes_reward_function(context) and context.bindings["reward"] is None
    return names_one or context.bindings["reward_function"] is not None


def distils(context: Context) -> bool:
    return context.leaves["distillation.enabled"] is True


def trains_on_rewards(context: Context) -> bool:
    """verl/trainer/distillation/losses.py:210: a teacher may stand in for the policy loss and its terms."""
    return not distils(context) or bool(
        context.leaves["distillation.distillation_loss.use_task_rewards"]
    )


def filters_groups(context: Context) -> bool:
    return context.leaves["algorithm.filter_groups.enable"] is True


def refills_failed_groups(context: Context) -> bool:
    return context.leaves["trainer.v1.sampler.sync_refill_failed_groups"] is True


def bypasses_scoring(context: Context) -> bool:
    return context.leaves["algorithm.rollout_correction.bypass_mode"] is True


def validates(context: Context) -> bool:
    """Before training, or every `test_freq` steps (v1/trainer_base.py), unless bound to no rows."""
    every = context.leaves["trainer.test_freq"]
    scheduled = type(every) is int and every > 0
    wanted = scheduled or context.leaves["trainer.val_before_train"] is True
    return wanted and not context.bindings["without_validation"]


def loss_mode(context: Context) -> object:
    return context.leaves[f"{_ACTOR}.policy_loss.loss_mode"]


def schedule_kind(leaves: Mapping[str, Any], optim: str) -> object:
    """verl/workers/config/optimizer.py:122: the older name wins where it is set."""
    older = leaves[f"{optim}.warmup_style"]
    return older if older is not None else leaves[f"{optim}.lr_scheduler_type"]
