"""`trainer`: how many steps, when to save and validate, which of upstream's trainers runs.

Sources: verl/trainer/ppo/v1/trainer_base.py:395-480, :705-730, :790-830; verl/trainer/main_ppo.py:140-190.
"""

from collections.abc import Mapping
from typing import Any

from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    behind,
    dead,
    lowers,
    notes,
    reject,
    requires,
    set_in_vain,
)
from miniverl.compiler.rules.limits import LARGEST_WHOLE, is_whole, truth, whole
from miniverl.compiler.rules.repeated import off
from miniverl.compiler.rules.switches import has_critic, validates

_SAMPLER = "trainer.v1.sampler"


def total_steps(leaves: Mapping[str, Any], train_rows: int | None) -> int | None:
    """Steps of the whole run, as the learning rate's schedule counts them; None while it cannot be known.

    Without a stated count, all epochs of whole batches (trainer_base.py:712), overlong prompts included.
    """
    stated = leaves["trainer.total_training_steps"]
    if stated is not None:
        return int(stated) if is_whole(stated, 1) else None
    return _steps_of_epochs(leaves, train_rows)


def _steps_of_epochs(leaves: Mapping[str, Any], train_rows: int | None) -> int | None:
    epochs, batch = leaves["trainer.total_epochs"], leaves["data.train_batch_size"]
    if train_rows is None or not is_whole(epochs, 1) or not is_whole(batch, 1):
        return None
    at_most = leaves["data.train_max_samples"]
    rows = min(train_rows, at_most) if is_whole(at_most, 1) else train_rows
    return min(int(rows // batch * epochs), LARGEST_WHOLE)


def _total_epochs(field: str, value: Any, context: Context) -> Verdict:
    """Upstream's loop saves and validates at the step of its count alone (v1/trainer_base.py:443-475)."""
    limit = whole(field, at_least=1)
    if not limit.accepts(value):
        return reject(limit)
    steps = context.leaves["trainer.total_training_steps"]
    last = _steps_of_epochs(context.leaves, context.bindings["train_rows"])
    return Verdict(
        classification=Class.EXACT,
        reason="ends the run, even where total_training_steps is larger",
        label="steps.num_epochs",
        target="steps.num_epochs",
        lowered=value,
        warning=f"{field} ends the run by step {last}; upstream then skips the validation and the checkpoint of "
        "a last step, and a run here does not"
        if last is not None and is_whole(steps, 1) and last < steps
        else None,
    )


def _frequency(field: str) -> Limit:
    return Limit(
        accepts=lambda every: type(every) is int,
        because="upstream compares this count of steps with 0",
        fix=f"Set {field} to a whole number; 0 or less is never",
    )


def _val_before_train(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    if not validates(context):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="nothing is validated: there are no rows for it, or no step to do it at",
            label="validation",
        )
    return Verdict(
        classification=Class.EXACT,
        reason="whether the untrained policy is validated",
        label="validation.before_training",
        target="validation.before_training",
        lowered=value,
    )


def _test_freq(field: str, value: Any, context: Context) -> Verdict:
    if not _frequency(field).accepts(value):
        return reject(_frequency(field))
    if not validates(context):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="nothing is validated: there are no rows for it, or no step to do it at",
            label="validation",
            target="validation",
            lowered=None,
        )
    return Verdict(
        classification=Class.EXACT if value > 0 else Class.CONFORMANT,
        reason="validates at every such step, and after the last"
        if value > 0
        else "validates before training alone",
        label="validation.every_steps",
        target="validation.every_steps",
        lowered=max(value, 0),
    )


def _resume_mode(field: str, value: Any, context: Context) -> Verdict:
    if value in ("auto", "disable"):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="a run here resumes from its own folder when it is told to, and only then",
            label="resume",
        )
    known = value == "resume_path"
    return Verdict(
        classification=Class.NOT_IMPLEMENTED if known else Class.UNSUPPORTED,
        reason="checkpoints of upstream's are not read here"
        if known
        else "the pin knows auto, disable and resume_path, and stops at anything else",
        fix=f"Set {field}=auto",
    )


def _device(field: str, value: Any, context: Context) -> Verdict:
    if value in ("cuda", "cpu"):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="the device is chosen when the recipe is run",
            label="device",
        )
    return Verdict(
        classification=Class.UNSUPPORTED,
        reason="there is no such device here",
        fix=f"Set {field}=cuda or {field}=cpu",
    )


def _sync_settings(field: str, value: Any, context: Context) -> Verdict:
    """Settings of the synchronous trainer: an empty mapping, unless something was appended to it."""
    setting = field.removeprefix("trainer.v1.sync").lstrip(".")
    if (not setting and not value) or (setting == "parameter_sync_step" and value == 1):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="no settings, as upstream's default: one update for each batch of rollouts",
        )
    return Verdict(
        classification=Class.NOT_IMPLEMENTED,
        reason="a step here samples once and updates once",
        fix=f"Remove {field}",
    )


def _critic_warmup(field: str, value: Any, context: Context) -> Verdict:
    """The policy is updated from the step of this number on (v1/trainer_base.py:570)."""
    limit = whole(field, at_least=0)
    if not limit.accepts(value):
        return reject(limit)
    if has_critic(context):
        return Verdict(
            classification=Class.EXACT,
            reason="the first step that updates the policy; steps before it train the critic alone",
            label="critic.warmup_steps",
            target="critic.warmup_steps",
            lowered=value,
        )
    if value > 1:
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="there is no critic to warm up: the pin would sample in these steps and train nothing",
            fix=f"Set {field}=0",
        )
    return Verdict(
        classification=Class.INFORMATIONAL,
        reason="not read: there is no critic, and the policy is updated from the first step on",
        warning=set_in_vain(field, context),
    )


def _kept_critics(field: str, value: Any, context: Context) -> Verdict:
    if not has_critic(context):
        return Verdict(
            classification=Class.INFORMATIONAL,
            reason="not read: there is no critic",
            warning=set_in_vain(field, context),
        )
    kept = context.leaves["trainer.max_actor_ckpt_to_keep"]
    return Verdict(
        classification=Class.CONFORMANT,
        reason="a checkpoint here holds policy and critic: trainer.max_actor_ckpt_to_keep says how many stay",
        label="steps.keep_checkpoints",
        warning=None if (value or None) == (kept or None) else f"{field}={value}, and {kept} stay",
    )


def _refills(field: str, value: Any, context: Context) -> Verdict:
    if not truth(field).accepts(value):
        return reject(truth(field))
    return Verdict(
        classification=Class.CONFORMANT,
        reason="no rollout fails by itself here; prompts are fetched one by one, as upstream then does"
        if value
        else "off, as upstream's default: replacing prompts whose rollout failed",
        label="data.prompts_per_draw",
    )


def _one_device(name: str) -> Rule:
    return notes(f"trainer.{name}", Class.DISTRIBUTED, "one process on one device here")


def _label(name: str) -> Rule:
    return notes(f"trainer.{name}", Class.INFORMATIONAL, "names the run, and changes nothing in it")


def _written(name: str) -> Rule:
    return notes(
        f"trainer.{name}",
        Class.INFORMATIONAL,
        "what upstream writes beside its metrics; a run here keeps every response",
    )


def _mode(name: str, setting: str) -> Rule:
    return behind(
        f"trainer.v1.{name}.{setting}",
        lambda context: context.leaves["trainer.v1.trainer_mode"] == name,
        off=f"not read: trainer.v1.trainer_mode is not {name}",
        on="waits for trainer.v1.trainer_mode, which is not run here",
    )


RULES: tuple[Rule, ...] = (
    dead(
        "trainer.balance_batch", "the default trainer always balances; one device keeps its order"
    ),
    Rule("trainer.total_epochs", _total_epochs),
    lowers(
        "trainer.total_training_steps",
        "steps.num_steps",
        "batches of rollouts, each with its update; null leaves the end to total_epochs",
        limit=Limit(
            accepts=lambda steps: steps is None or is_whole(steps, 1),
            because="a count of steps is a whole number of at least 1",
            fix="Set trainer.total_training_steps to such a number, or to null",
        ),
    ),
    *map(_label, ("project_name", "experiment_name")),
    notes(
        "trainer.logger",
        Class.INFORMATIONAL,
        "metrics go to the terminal and to files of the run; no service is written to",
    ),
    *map(_written, ("log_val_generations", "rollout_data_dir", "validation_data_dir")),
    *map(_one_device, ("nnodes", "n_gpus_per_node")),
    lowers(
        "trainer.save_freq",
        "steps.checkpoint_every",
        "saves at every such step; here after the last one too, even where this is 0 or less",
        to=lambda every: max(every, 0),
        limit=_frequency("trainer.save_freq"),
    ),
    dead("trainer.esi_redundant_time", "only the older trainer reads it"),
    Rule("trainer.resume_mode", _resume_mode),
    behind(
        "trainer.resume_from_path",
        lambda context: context.leaves["trainer.resume_mode"] == "resume_path",
        off="not read: trainer.resume_mode is not resume_path",
        on="waits for trainer.resume_mode, which is not run here",
    ),
    Rule("trainer.val_before_train", _val_before_train),
    off(
        "trainer.val_only",
        False,
        what="validating without training",
        because="a run here trains",
        fix="Set trainer.val_only=False",
    ),
    Rule("trainer.test_freq", _test_freq),
    Rule("trainer.critic_warmup", _critic_warmup),
    dead("trainer.default_hdfs_dir", "FSDP's checkpoints never leave the local disk"),
    dead("trainer.del_local_ckpt_after_load", "only copies of remote checkpoints would be deleted"),
    notes(
        "trainer.default_local_dir",
        Class.CONFORMANT,
        "where upstream writes; the folder of a run is chosen when it is run",
        label="run folder",
    ),
    lowers(
        "trainer.max_actor_ckpt_to_keep",
        "steps.keep_checkpoints",
        "keeps as many of the latest checkpoints, counting those from before a resume; null keeps all",
        classification=Class.CONFORMANT,
        to=lambda count: count or None,
        limit=Limit(
            accepts=lambda count: count is None or is_whole(count, 0),
            because="a count of checkpoints is a whole number of at least 0, or null",
            fix="Set trainer.max_actor_ckpt_to_keep=null to keep all",
        ),
    ),
    Rule("trainer.max_critic_ckpt_to_keep", _kept_critics),
    dead("trainer.ray_wait_register_center_timeout", "only the older trainer reads it"),
    Rule("trainer.device", _device),
    requires(
        "trainer.use_v1",
        True,
        classification=Class.CONFORMANT,
        reason="the default trainer, whose steps are those run here",
        label="trainer",
        otherwise=Class.NOT_IMPLEMENTED,
        because="the older trainer cuts mini-batches from another order, leaves rejected tokens out of the "
        "normaliser, divides seq-mean-token-sum-norm by another length, ignores group filters, and saves "
        "only after the policy was updated",
        fix="Set trainer.use_v1=True",
    ),
    requires(
        "trainer.v1.trainer_mode",
        "sync",
        classification=Class.CONFORMANT,
        reason="samples come from the weights that are then updated",
        label="trainer",
        otherwise=Class.NOT_IMPLEMENTED,
        because="in the other modes samples come from older weights than those that are updated",
        fix="Set trainer.v1.trainer_mode=sync",
    ),
    Rule("trainer.v1.sync*", _sync_settings),
    _mode("colocate_async", "num_warmup_batches"),
    _mode("separate_async", "num_warmup_batches"),
    _mode("separate_async", "parameter_sync_step"),
    *(
        dead(f"{_SAMPLER}.{name}", "not read while trainer.v1.trainer_mode is sync")
        for name in ("max_off_policy_threshold", "max_off_policy_strategy")
    ),
    Rule(f"{_SAMPLER}.sync_refill_failed_groups", _refills),
    off(
        f"{_SAMPLER}.custom_sampler.path",
        None,
        what="a replay buffer of the user's own",
        because="replay buffers of the user's own are not run here",
        fix=f"Set {_SAMPLER}.custom_sampler.path=null",
    ),
    behind(
        f"{_SAMPLER}.custom_sampler.name",
        lambda context: context.leaves[f"{_SAMPLER}.custom_sampler.path"] is not None,
        off=f"not read: {_SAMPLER}.custom_sampler.path is null",
        on=f"waits for {_SAMPLER}.custom_sampler.path, which is not run here",
    ),
    behind(
        f"{_SAMPLER}.sampler_kwargs*",
        lambda context: context.leaves[f"{_SAMPLER}.custom_sampler.path"] is not None,
        off=f"not read: {_SAMPLER}.custom_sampler.path is null",
        on=f"waits for {_SAMPLER}.custom_sampler.path, which is not run here",
    ),
)
