#!/usr/bin/env bash
# A GRPO launch as people keep it: settings with defaults on top, one array for each section, a log beside it.
set -xeuo pipefail

export VLLM_USE_V1=1
export TOKENIZERS_PARALLELISM=false

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
DATA_DIR=${DATA_DIR:-$HOME/data}
ENGINE=${1:-vllm}
NUM_GPUS=${NUM_GPUS:-8}
PROMPTS=${PROMPTS:-1024}
MAX_PROMPT=1024
MAX_RESPONSE=$((MAX_PROMPT * 2))
MAX_TOKENS=$(((MAX_PROMPT + MAX_RESPONSE) * 8))
PROJECT=verl_grpo_gsm8k_math
EXPERIMENT=qwen3_8b_grpo_${ENGINE}_fsdp_$(date +%Y%m%d_%H%M)

case "$ENGINE" in
    vllm) memory=0.6 ;;
    sglang) memory=0.7 ;;
    *) echo "unknown engine: $ENGINE" >&2; exit 1 ;;
esac

files() {
    local split=$1
    echo "['$DATA_DIR/gsm8k/$split.parquet', '$DATA_DIR/math/$split.parquet']"
}

ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
)
DATA=(
    data.train_files="$(files train)"
    data.val_files="$(files test)"
    data.train_batch_size=$PROMPTS
    data.max_prompt_length=$MAX_PROMPT
    data.max_response_length=$MAX_RESPONSE
    data.filter_overlong_prompts=True
    data.truncation='error'
)
MODEL=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)
ACTOR=(
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=$((PROMPTS / 4))
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$MAX_TOKENS
    # the KL term is part of the loss
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.fsdp_config.param_offload=False
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=$ENGINE
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.gpu_memory_utilization=$memory
    actor_rollout_ref.rollout.n=5
)
ROLLOUT+=(
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$MAX_TOKENS
)
REFERENCE=(
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$MAX_TOKENS
    actor_rollout_ref.ref.fsdp_config.param_offload=True
)

python3 -m verl.trainer.main_ppo \
    "${ALGORITHM[@]}" "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${REFERENCE[@]}" \
    trainer.balance_batch=True \
    trainer.logger='["console","wandb"]' \
    trainer.project_name="${PROJECT}" \
    trainer.experiment_name="$EXPERIMENT" \
    trainer.n_gpus_per_node=$NUM_GPUS \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 "${@:2}" 2>&1 | tee "$EXPERIMENT.log"
