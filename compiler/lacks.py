"""Leaves that the rules know from a later release and an older one's tree does not have: what they hold there.

An older release is judged by the same rules, with these on top of its own tree; no report of it shows them.
"""

from collections.abc import Mapping
from typing import Any

_SCHEDULE: Mapping[str, Any] = {
    "_target_": "verl.utils.profiler.config.TorchProfilerScheduleConfig",
    "active": 0,
    "repeat": 0,
    "skip_first": 0,
    "wait": 0,
    "warmup": 0,
}


def _each(sections: tuple[str, ...], leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for section in sections for name, value in leaves.items()}


LACKS: Mapping[str, Mapping[str, Any]] = {
    "0.8.0": {
        **_each(
            (
                "actor_rollout_ref.actor.profiler.tool_config.torch.schedule",
                "actor_rollout_ref.ref.profiler.tool_config.torch.schedule",
                "critic.profiler.tool_config.torch.schedule",
            ),
            _SCHEDULE,
        ),
        **_each(
            ("actor_rollout_ref.actor", "actor_rollout_ref.ref"),
            {"entropy_from_logits_chunk_size": 2048, "pad_to_length": False},
        ),
        **_each(
            (
                "actor_rollout_ref.actor.fsdp_config",
                "actor_rollout_ref.ref.fsdp_config",
                "critic.fsdp",
            ),
            {
                "entropy_from_logits_chunk_size": 2048,
                "pad_to_length": False,
                "pad_to_length_bucket": 1024,
            },
        ),
        **_each(
            (
                "actor_rollout_ref.rollout.profiler.tool_config.npu",
                "actor_rollout_ref.rollout.profiler.tool_config.torch",
            ),
            {"profile_token_start": None, "profile_token_end": None},
        ),
        **_each(
            ("skip.async_rollout", "skip.rollout", "skip.rollout_tq"),
            {"action": "cache", "dump_dir": "~/.verl/rollout_dump", "enable": False, "steps": []},
        ),
        "actor_rollout_ref.actor.policy_loss.dro_beta": None,
        "actor_rollout_ref.rollout.full_determinism": False,
        "actor_rollout_ref.rollout.moe_load_balance_metrics_interval": 0,
        "actor_rollout_ref.rollout.seed": 0,
        "algorithm.filter_groups._target_": "verl.trainer.config.FilterGroupsConfig",
        "algorithm.filter_groups.enable": False,
        "algorithm.filter_groups.max_inflight_gen_batches": 1,
        "algorithm.filter_groups.max_num_gen_batches": 0,
        "algorithm.filter_groups.metric": None,
        "critic.loss_scale_factor": None,
        "data.continuous_token.enable": False,
        "data.continuous_token.model_family": "auto",
        "data.gen_batch_size": None,
        "reward.reward_model.rollout.full_determinism": False,
        "reward.reward_model.rollout.seed": 42,
        "skip._target_": "verl.utils.skip.SkipManagerConfig",
        "trainer.use_v1": True,
        "trainer.v1.colocate_async.num_warmup_batches": 1,
        "trainer.v1.sampler.custom_sampler.name": None,
        "trainer.v1.sampler.custom_sampler.path": None,
        "trainer.v1.sampler.max_off_policy_strategy": "drop",
        "trainer.v1.sampler.max_off_policy_threshold": 8,
        "trainer.v1.sampler.sampler_kwargs": {},
        "trainer.v1.sampler.sync_refill_failed_groups": False,
        "trainer.v1.separate_async.num_warmup_batches": 1,
        "trainer.v1.separate_async.parameter_sync_step": 4,
        "trainer.v1.sync": {},
        "trainer.v1.trainer_mode": "sync",
    }
}
