"""Names of earlier releases, and what took their place at v0.9.

Found by composing `ppo_trainer` of v0.2.0 to v0.8.0 and listing what v0.9.0 has no leaf for. A name ends in
`.*` where a whole section moved. None took the place of the names that map to nothing.
"""

from collections.abc import Mapping

from miniverl.compiler.leaf import parents

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_CORRECTION = "algorithm.rollout_correction"
_MODEL = "reward.reward_model"
_NSYS = "global_profiler.global_tool_config.nsys"

HEIRS: Mapping[str, str] = {
    # rewards: a section of their own since v0.8
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "custom_reward_function.reward_kwargs": "reward.custom_reward_function.reward_kwargs",
    "custom_reward_function.*": "reward.custom_reward_function",
    "sandbox_fusion.*": "reward.sandbox_fusion",
    "reward_manager.*": "reward.reward_manager",
    "reward_model.enable": f"{_MODEL}.enable",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.model.path": f"{_MODEL}.model_path",
    "reward_model.sandbox_fusion.*": "reward.sandbox_fusion",
    # micro-batches: counted for one device since v0.2
    f"{_ACTOR}.ppo_micro_batch_size": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size": f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{_REF}.log_prob_micro_batch_size": f"{_REF}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    # KL, corrections
    "kl_ctrl.*": "algorithm.kl_ctrl",
    "critic.kl_ctrl.*": "algorithm.kl_ctrl",
    "kl_penalty": "algorithm.kl_penalty",
    f"{_CORRECTION}.rollout_rs_threshold_lower": f"{_CORRECTION}.rollout_rs_threshold",
    f"{_CORRECTION}.use_policy_gradient": f"{_CORRECTION}.loss_type",
    # the rest
    f"{_ACTOR}.checkpoint.contents": f"{_ACTOR}.checkpoint.save_contents",
    "critic.checkpoint.contents": "critic.checkpoint.save_contents",
    "critic.model.fsdp_config.*": "critic.fsdp",
    "ray_init.num_cpus": "ray_kwargs.ray_init.num_cpus",
    "ray_init.timeline_json_file": "ray_kwargs.timeline_json_file",
    f"{_ROLLOUT}.skip_rollout": "skip.rollout_tq.enable",
    f"{_ROLLOUT}.skip_dump_dir": "skip.rollout_tq.dump_dir",
    f"{_ROLLOUT}.skip.enable": "skip.rollout_tq.enable",
    f"{_ROLLOUT}.skip.dump_dir": "skip.rollout_tq.dump_dir",
    f"{_ROLLOUT}.update_weights_bucket_megabytes": (
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    ),
    "data.sampler.class_path": "trainer.v1.sampler.custom_sampler.path",
    "data.sampler.class_name": "trainer.v1.sampler.custom_sampler.name",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.remove_previous_ckpt_in_save": "trainer.max_actor_ckpt_to_keep",
    "trainer.profile_steps": "global_profiler.steps",
    "trainer.use_legacy_worker_impl": "trainer.use_v1",
    "trainer.controller_nsight_options.*": f"{_NSYS}.controller_nsight_options",
    "trainer.worker_nsight_options.*": f"{_NSYS}.worker_nsight_options",
}

GONE: tuple[str, ...] = (
    f"{_ACTOR}.fsdp_config.grad_offload",
    f"{_ROLLOUT}.use_fire_sampling",
    f"{_ROLLOUT}.multi_turn.completion_callback",
    f"{_ROLLOUT}.skip",
    "critic.model.fsdp_config.grad_offload",
    f"{_CORRECTION}.rollout_token_veto_threshold",
    "data.datagen",
    "ray_init",
    "reward_model",
    "trainer.npu_profile",
)


def heir(field: str) -> str | None:
    """The leaf or section of v0.9 that took the place of `field`; None where the name is no old one."""
    if field in HEIRS or field in GONE:
        return HEIRS.get(field)
    for section in parents(field):
        if f"{section}.*" in HEIRS:
            return HEIRS[f"{section}.*"] + field.removeprefix(section)
    return None


def fix(field: str) -> str | None:
    """What to do with an old name, as a sentence; None where it is no old one."""
    successor = heir(field)
    if successor is not None:
        return f"A name of before v0.9: set {successor} in its place"
    if any(old in (field, *parents(field)) for old in GONE):
        return f"A name of before v0.9: remove {field}, nothing took its place"
    return None
