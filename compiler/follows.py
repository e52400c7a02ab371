"""Which leaves of upstream's tree copy another leaf until they are set themselves.

A copy that moved with its source was set by nobody: it deserves no warning of its own. Left out are the
interpolations of the profilers, which are never warned about. Source: the `${...}` and `${oc.select:...}`
values of verl/trainer/config at the pin; tests/conformance compares them.
"""

from collections.abc import Mapping

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_TEACHER = "distillation.teacher_models.teacher_model.inference"

_MTP = (
    "_target_ enable enable_train enable_rollout detach_encoder mtp_loss_scaling_factor "
    "speculative_algorithm speculative_num_steps speculative_eagle_topk "
    "speculative_num_draft_tokens method num_speculative_tokens"
)
_QAT = (
    "_target_ enable mode group_size ignore_patterns activation_observer quantization_config_path"
)


def _copies(copy: str, source: str, names: str) -> dict[str, str]:
    return {f"{copy}.{name}": f"{source}.{name}" for name in names.split()}


FOLLOWS: Mapping[str, str] = {
    f"{_ACTOR}.rollout_n": f"{_ROLLOUT}.n",
    f"{_ACTOR}.checkpoint.load_contents": f"{_ACTOR}.checkpoint.save_contents",
    **_copies(_ACTOR, _MODEL, "use_fused_kernels use_remove_padding"),
    **_copies(
        f"{_ACTOR}.fsdp_config",
        _ACTOR,
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing "
        "pad_to_length",
    ),
    f"{_REF}.rollout_n": f"{_ROLLOUT}.n",
    **_copies(
        _REF,
        _ACTOR,
        "strategy use_torch_compile ulysses_sequence_parallel_size pad_to_length",
    ),
    f"{_REF}.log_prob_use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    f"{_REF}.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    **_copies(
        f"{_REF}.fsdp_config",
        _REF,
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing "
        "pad_to_length",
    ),
    **_copies(f"{_REF}.fsdp_config", f"{_ACTOR}.fsdp_config", "pad_to_length_bucket"),
    f"{_ROLLOUT}.n_gpus_per_node": "trainer.n_gpus_per_node",
    f"{_ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{_ROLLOUT}.response_length": "data.max_response_length",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": f"{_ACTOR}.use_dynamic_bsz",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ROLLOUT}.trace.project_name": "trainer.project_name",
    f"{_ROLLOUT}.trace.experiment_name": "trainer.experiment_name",
    f"{_ROLLOUT}.prometheus.served_model_name": f"{_MODEL}.path",
    **_copies(f"{_ROLLOUT}.mtp", f"{_MODEL}.mtp", _MTP),
    **_copies(f"{_ROLLOUT}.qat", f"{_ACTOR}.fsdp_config.qat", _QAT),
    **_copies("data", f"{_ROLLOUT}.multi_turn", "tool_config_path function_tool_path"),
    "critic.rollout_n": f"{_ROLLOUT}.n",
    **_copies(
        "critic",
        _ACTOR,
        "ppo_mini_batch_size use_dynamic_bsz ppo_epochs shuffle loss_agg_mode loss_scale_factor",
    ),
    "critic.ppo_micro_batch_size_per_gpu": "critic.ppo_micro_batch_size",
    "critic.forward_micro_batch_size": "critic.ppo_micro_batch_size",
    "critic.forward_micro_batch_size_per_gpu": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_max_token_len_per_gpu": "critic.ppo_max_token_len_per_gpu",
    "critic.checkpoint.load_contents": "critic.checkpoint.save_contents",
    **_copies(_TEACHER, _ROLLOUT, "name dtype prompt_length response_length temperature"),
}
