"""One optimizer step of upstream's own FSDP worker, on a CPU, from a bundle and a batch of ours.

    VERL_PYTHON upstream_step.py REQUEST.json     run in an interpreter that has verl

What is upstream's: composition, model loading, FSDP2 sharding, log-probabilities, loss, optimizer, checkpoint. What is
not: Ray, the inference server, and the platform below, which upstream has none of for a CPU; it is registered where
upstream lets others register theirs (verl/plugin/platform/platform_manager.py:46), and gloo stands in for NCCL.
"""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "RANK": "0",
    "VERL_ENGINE_DEVICE": "cuda",  # whose engine to take: the FSDP engine is registered for cuda and npu
    "VERL_PLATFORM": "cpu",
    "WORLD_SIZE": "1",
}

import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from safetensors.torch import save_file
from tensordict import TensorDict
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

# Where one process on a CPU cannot do as the launch says. None of them changes what is computed, but for the
# precision, which is the run's.
LOCAL = (
    "actor_rollout_ref.actor.strategy=fsdp2",  # FSDP1 wants parameters on a GPU
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "actor_rollout_ref.model.use_remove_padding=False",  # it needs flash-attn
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
)


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> Any:
        for name in (
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "memory_reserved",
        ):
            setattr(torch.cpu, name, lambda *_: 0)
        for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats"):
            setattr(torch.cpu, name, lambda *_: None)
        torch.cpu.get_rng_state, torch.cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state
        return torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch(rows: list[dict[str, Any]]) -> TensorDict:
    """Trajectories as upstream's trainer hands them to its workers, without padding."""
    prompts = [torch.tensor(row["prompt_tokens"]) for row in rows]
    responses = [torch.tensor(row["response_tokens"]) for row in rows]
    both = list(zip(prompts, responses, strict=True))
    made = TensorDict({}, batch_size=len(rows))
    made["prompts"], made["responses"] = jagged(prompts), jagged(responses)
    made["input_ids"] = jagged([torch.cat(pair) for pair in both])
    made["position_ids"] = jagged([torch.arange(len(one) + len(other)) for one, other in both])
    made["response_mask"] = jagged([torch.ones_like(response) for response in responses])
    made["loss_mask"] = jagged(
        [torch.cat([torch.zeros_like(one), torch.ones_like(other)]) for one, other in both]
    )
    return made


def trained(worker: Any) -> dict[str, torch.Tensor]:
    """The adapter behind the step, in float32 and by the names that peft saves it under."""
    return {
        name.replace(".default", ""): parameter.full_tensor().detach().clone()
        for name, parameter in worker.actor.engine.module.named_parameters()
        if parameter.requires_grad
    }


def main(request_path: str) -> None:
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.utils.padding import response_from_nested

    request = json.loads(Path(request_path).read_text())
    torch.set_num_threads(1)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(request["config_name"], [*request["overrides"], *LOCAL])
    OmegaConf.resolve(config)
    with open_dict(config):  # as the trainer does, when it has counted its rows
        config.actor_rollout_ref.actor.optim.total_training_steps = request["total_steps"]
    store = Path(request["out"]) / "rendezvous"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    rows = request["rows"]

    def scored(without_adapter: bool) -> torch.Tensor:
        given = batch(rows)
        tu.assign_non_tensor(
            given,
            calculate_entropy=False,
            compute_loss=False,
            no_lora_adapter=without_adapter,
            temperature=config.actor_rollout_ref.rollout.temperature,
        )
        return response_from_nested(
            worker.compute_log_prob(given)["log_probs"], given["response_mask"]
        )

    old, reference = scored(without_adapter=False), scored(without_adapter=True)
    given = batch(rows)
    given["old_log_probs"], given["ref_log_prob"] = old, reference
    given["advantages"] = jagged([torch.tensor(row["advantages"]) for row in rows])
    actor = config.actor_rollout_ref.actor
    tu.assign_non_tensor(
        given,
        calculate_entropy=actor.entropy_coeff != 0,
        dataloader_kwargs={"shuffle": actor.shuffle},
        distillation_only=False,
        distillation_use_topk=False,
        epochs=actor.ppo_epochs,
        global_batch_size=len(rows),
        mini_batch_size=len(rows),
        seed=actor.data_loader_seed,
        temperature=config.actor_rollout_ref.rollout.temperature,
    )
    metrics = tu.get(worker.update_actor(given), "metrics")
    save_file(trained(worker), Path(request["out"]) / "stepped.safetensors")
    worker.save_checkpoint(str(Path(request["out"]) / "global_step_1" / "actor"), global_step=1)
    answer = {
        "grad_norm": float(metrics["grad_norm"][0]),
        "old_log_probs": [each.tolist() for each in old.unbind()],
        "reference_log_probs": [each.tolist() for each in reference.unbind()],
    }
    (Path(request["out"]) / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
