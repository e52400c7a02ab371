"""The switches of a launch: leaves that decide whether others are read, and which parts run."""

from miniverl.compiler.rule import Context

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"


def has_critic(context: Context) -> bool:
    """verl/trainer/ppo/utils.py:98: stated, or else needed by generalised advantages alone."""
    enable = context.leaves["critic.enable"]
    return (
        bool(enable) if enable is not None else context.leaves["algorithm.adv_estimator"] == "gae"
    )


def uses_kl_loss(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.use_kl_loss"] is True


def needs_reference(context: Context) -> bool:
    """verl/trainer/ppo/utils.py:79."""
    return uses_kl_loss(context) or bool(context.leaves["algorithm.use_kl_in_reward"])


def uses_lora(context: Context) -> bool:
    rank = context.leaves[f"{_MODEL}.lora_rank"]
    return type(rank) is int and rank > 0


def has_reference_worker(context: Context) -> bool:
    """With LoRA the reference is the actor without its adapter (v1/trainer_base.py:744)."""
    return needs_reference(context) and not uses_lora(context)


def bins_dynamically(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.use_dynamic_bsz"] is True


def shuffles_mini_batches(context: Context) -> bool:
    return context.leaves[f"{_ACTOR}.shuffle"] is True


def has_reward_model(context: Context) -> bool:
    return bool(context.leaves["reward.reward_model.enable"])


def distils(context: Context) -> bool:
    return bool(context.leaves["distillation.enabled"])


def validates(context: Context) -> bool:
    """Before training, or every `test_freq` steps (v1/trainer_base.py), unless bound to no rows."""
    every = context.leaves["trainer.test_freq"]
    scheduled = type(every) is int and every > 0
    wanted = scheduled or context.leaves["trainer.val_before_train"] is True
    return wanted and not context.bindings["without_validation"]


def loss_mode(context: Context) -> object:
    return context.leaves[f"{_ACTOR}.policy_loss.loss_mode"]


def schedule_kind(context: Context) -> object:
    """verl/workers/config/optimizer.py:122: the older name wins where it is set."""
    older = context.leaves[f"{_ACTOR}.optim.warmup_style"]
    return older if older is not None else context.leaves[f"{_ACTOR}.optim.lr_scheduler_type"]
