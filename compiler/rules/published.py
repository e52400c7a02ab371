"""What earlier profiles say otherwise than the table of native Hydra: classes, labels and limits as published.

A rule here judges by the table below it, and then shows the published class and label. What the table rejects
stays rejected, and what it writes to the recipe is written.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from miniverl.compiler.judge import Table
from miniverl.compiler.rule import REJECTING, Class, Context, Limit, Rule, Verdict, reject
from miniverl.compiler.rules.limits import is_whole, whole

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_STUDENT = "models.student"

BACKEND = "miniverl.rollout.backend"
OWN_SAMPLER = "own sampler"

_MINI_BATCH = f"{_ACTOR}.ppo_mini_batch_size"
_EXACT, _CONFORMANT = Class.EXACT, Class.CONFORMANT
_LOWERED, _DISTRIBUTED, _INFORMATIONAL = Class.LOWERED, Class.DISTRIBUTED, Class.INFORMATIONAL

# Field, class and label of the published report. A reason stands where the table's own would not fit them.
SHOWN: tuple[tuple[str, Class, str | None, str | None], ...] = (
    (f"{_ACTOR}.clip_ratio", _EXACT, "loss.clip_ratio", "the clip of a side that states none"),
    (f"{_ACTOR}.clip_ratio_c", _EXACT, "loss.clip_ratio_c", None),
    (f"{_ACTOR}.clip_ratio_high", _EXACT, "loss.clip_ratio_high", None),
    (f"{_ACTOR}.clip_ratio_low", _EXACT, "loss.clip_ratio_low", None),
    (f"{_ACTOR}.entropy_coeff", _EXACT, None, None),
    (f"{_ACTOR}.loss_agg_mode", _EXACT, "loss.aggregation", None),
    (f"{_ACTOR}.optim.lr", _EXACT, "train.learning_rate", None),
    (f"{_ACTOR}.optim.lr_warmup_steps", _EXACT, "train.warmup_steps", None),
    (f"{_ACTOR}.optim.weight_decay", _EXACT, "train.weight_decay", None),
    (f"{_ACTOR}.ppo_epochs", _EXACT, "train.opd_freshness", None),
    (_MINI_BATCH, _CONFORMANT, "train.gradient_accumulation_steps", None),
    (f"{_ACTOR}.use_kl_loss", _EXACT, None, None),
    (
        f"{_MODEL}.enable_gradient_checkpointing",
        _CONFORMANT,
        f"{_STUDENT}.gradient_checkpointing",
        None,
    ),
    (f"{_MODEL}.lora_alpha", _CONFORMANT, f"{_STUDENT}.lora.alpha", None),
    (f"{_MODEL}.lora_rank", _CONFORMANT, f"{_STUDENT}.lora.r", None),
    (f"{_MODEL}.path", _EXACT, f"{_STUDENT}.model_id", None),
    (f"{_MODEL}.target_modules", _CONFORMANT, f"{_STUDENT}.lora.target_modules", None),
    (f"{_ROLLOUT}.gpu_memory_utilization", _LOWERED, "memory planner", None),
    (f"{_ROLLOUT}.n", _EXACT, "rollout.samples_per_prompt", None),
    (f"{_ROLLOUT}.temperature", _EXACT, "rollout.temperature", None),
    (f"{_ROLLOUT}.tensor_model_parallel_size", _DISTRIBUTED, None, None),
    (f"{_ROLLOUT}.top_k", _EXACT, "rollout.top_k", None),
    (f"{_ROLLOUT}.top_p", _EXACT, "rollout.top_p", None),
    ("algorithm.adv_estimator", _CONFORMANT, "algorithm.name", None),
    ("algorithm.gamma", _INFORMATIONAL, None, None),
    ("algorithm.lam", _INFORMATIONAL, None, None),
    ("algorithm.norm_adv_by_std_in_grpo", _CONFORMANT, "algorithm.name", None),
    ("algorithm.use_kl_in_reward", _EXACT, "algorithm.kl_coef", None),
    ("data.max_prompt_length", _EXACT, "source.max_prompt_length", None),
    ("data.max_response_length", _EXACT, "source.max_response_length", None),
    ("data.prompt_key", _EXACT, "source.prompt_key", None),
    ("data.seed", _EXACT, "source.seed", None),
    ("data.shuffle", _CONFORMANT, "source.shuffle", None),
    ("data.train_batch_size", _CONFORMANT, "train.rollouts_per_cycle", None),
    ("data.train_files", _EXACT, "source.train_files", None),
    ("data.truncation", _CONFORMANT, "source.truncation", None),
    ("data.val_files", _EXACT, "source.val_files", None),
    ("trainer.experiment_name", _EXACT, "run.name", None),
    ("trainer.logger", _INFORMATIONAL, None, None),
    ("trainer.n_gpus_per_node", _DISTRIBUTED, None, None),
    ("trainer.nnodes", _DISTRIBUTED, None, None),
    ("trainer.project_name", _CONFORMANT, "run.tags", None),
    ("trainer.save_freq", _EXACT, "train.save_every_cycles", None),
    ("trainer.test_freq", _EXACT, "train.eval_every_cycles", None),
    ("trainer.total_training_steps", _EXACT, "train.cycles", None),
)

# What the first profile leaves out: one update on fresh samples, without KL and entropy.
_FIRST_ACCEPTS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (f"{_ACTOR}.entropy_coeff", (0,)),
    (f"{_ACTOR}.use_kl_loss", (False,)),
    (f"{_ACTOR}.ppo_epochs", (1,)),
    ("algorithm.adv_estimator", ("grpo",)),
    ("algorithm.use_kl_in_reward", (False,)),
)

# What the later subsets add: critic, rewards, KL, the whole optimizer, validation. Judged by the table below.
_ADDED = (
    f"{_ACTOR}.data_loader_seed",
    f"{_ACTOR}.kl_loss_coef",
    f"{_ACTOR}.kl_loss_type",
    f"{_ACTOR}.loss_scale_factor",
    f"{_ACTOR}.optim.*",
    f"{_ACTOR}.policy_loss.loss_mode",
    f"{_ACTOR}.shuffle",
    f"{_ROLLOUT}.seed",
    f"{_ROLLOUT}.val_kwargs.*",
    "algorithm.kl_ctrl.*",
    "algorithm.kl_penalty",
    "critic.*",
    "data.filter_overlong_prompts",
    "reward.*",
    "trainer.val_before_train",
)

# Mechanisms that the profile of resolved files never took, whatever later ones do.
_RESOLVED_ACCEPTS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (f"{_ACTOR}.shuffle", (False,)),
    (f"{_ROLLOUT}.over_sample_rate", (0, 0.0)),
    ("algorithm.filter_groups.enable", (False,)),
    ("trainer.v1.sampler.sync_refill_failed_groups", (False,)),
)


def first_subset(base: Sequence[Rule]) -> tuple[Rule, ...]:
    """v1: group-relative updates on fresh samples; mini-batches count trajectories."""
    narrow = Table.of([*narrowed(base, "verl-rl-v0.9-single-gpu-v3", _FIRST_ACCEPTS), *base])
    return _in_trajectories((*_shown(narrow), _epochs(narrow)))


def second_subset(base: Sequence[Rule]) -> tuple[Rule, ...]:
    """v2: with critic, rewards, KL and entropy; mini-batches count trajectories."""
    return _in_trajectories(third_subset(base))


def third_subset(base: Sequence[Rule]) -> tuple[Rule, ...]:
    """v3: with critic, rewards, KL and entropy; mini-batches count prompts."""
    table = Table.of(base)
    return (*_shown(table), _epochs(table), *(Rule(path, table.judge) for path in _ADDED))


def resolved(base: Sequence[Rule]) -> tuple[Rule, ...]:
    """v4: whole config files."""
    return narrowed(base, "verl-rl-v0.9-single-gpu-v5", _RESOLVED_ACCEPTS)


def narrowed(
    base: Sequence[Rule], later: str, accepts: Sequence[tuple[str, tuple[Any, ...]]]
) -> tuple[Rule, ...]:
    """The table's rules for the fields in `accepts`, for these values only."""
    table = Table.of(base)

    def narrow(pattern: str, accepted: tuple[Any, ...]) -> Rule:
        limit = Limit(
            accepts=lambda value: any(value == one for one in accepted),
            because="this profile takes no other value than " + " or ".join(map(str, accepted)),
            fix=f"Set {pattern}={accepted[0]}, or compile with --profile {later}",
            otherwise=Class.NOT_IMPLEMENTED,
        )

        def judge(field: str, value: Any, context: Context) -> Verdict:
            verdict = table.judge(field, value, context)
            narrowly = verdict.classification in REJECTING or limit.accepts(value)
            return verdict if narrowly else reject(limit)

        return Rule(pattern, judge)

    return tuple(narrow(*one) for one in accepts)


def _shown(table: Table) -> tuple[Rule, ...]:
    def show(field: str, shown: Class, label: str | None, reason: str | None) -> Rule:
        def judge(field: str, value: Any, context: Context) -> Verdict:
            verdict = table.judge(field, value, context)
            if verdict.classification in REJECTING or shown is _INFORMATIONAL:
                return verdict  # whether an estimator reads it, the table says
            because = reason or verdict.reason
            return replace(verdict, classification=shown, label=label, reason=because)

        return Rule(field, judge)

    return (*(show(*row) for row in SHOWN), _backend(table))


def _backend(table: Table) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        verdict = table.judge(field, value, context)
        local = context.leaves[BACKEND] or OWN_SAMPLER
        return replace(verdict, label="rollout.backend", lowered=local)

    return Rule(f"{_ROLLOUT}.name", judge)


def _epochs(table: Table) -> Rule:
    """Published as not used beside a count of steps; upstream ends at the nearer one, and so does a run here."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        verdict = table.judge(field, value, context)
        steps = context.leaves["trainer.total_training_steps"]
        if verdict.classification in REJECTING or not is_whole(steps, 1):
            return verdict
        return replace(
            verdict,
            classification=Class.INFORMATIONAL,
            label=None,
            reason="total_training_steps states the end; these epochs would end a run only before it",
        )

    return Rule("trainer.total_epochs", judge)


def _in_trajectories(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The first profiles count responses where upstream counts prompts, and so pass its check of both sizes."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if not whole(field, at_least=1).accepts(value):
            return reject(whole(field, at_least=1))
        prompts, samples = context.leaves["data.train_batch_size"], context.leaves[f"{_ROLLOUT}.n"]
        if not is_whole(prompts, 1) or not is_whole(samples, 1):
            return Verdict(classification=Class.INFORMATIONAL, reason="waits for another leaf")
        if value % samples or (prompts * samples) % value:
            return Verdict(
                classification=Class.NOT_IMPLEMENTED,
                reason=f"counts trajectories: {value} are not whole groups of {samples} that divide "
                f"the {prompts * samples} of a step",
                fix=f"Set {field} to a multiple of {samples} that divides {prompts * samples}",
            )
        return Verdict(
            classification=Class.CONFORMANT,
            reason="counts trajectories, as this profile was published; all are on this device",
            label="train.gradient_accumulation_steps",
            target="update.prompts_per_mini_batch",
            lowered=value // samples,
            warning=None
            if samples == 1
            else f"{field} counts trajectories in this profile, and prompts upstream: {value} there "
            f"{'is more than a batch has, which stops it' if value > prompts else 'is a larger mini-batch'}",
        )

    return (*(rule for rule in rules if rule.pattern != _MINI_BATCH), Rule(_MINI_BATCH, judge))
