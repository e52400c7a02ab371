"""How weights and adapters are lowered, and when the reference is read."""

import pytest

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"


def test_the_path_is_lowered_to_the_digest_of_the_bound_model(judge):
    assert judge(model="d" * 64).written["policy.weights_sha256"] == "d" * 64
    assert judge(model=None).written["policy.weights_sha256"] is None
    assert judge(model=None).rejected == set()


def test_rank_zero_trains_every_weight_and_reads_nothing_else_of_lora(judge):
    judged = judge({f"{MODEL}.lora_alpha": 64, f"{MODEL}.target_modules": "q_proj"})
    assert judged.rejected == set()
    assert judged.written["policy.lora"] is None
    assert not any(path.startswith("policy.lora.") for path in judged.written)


@pytest.mark.parametrize(
    ("modules", "excluded", "written"),
    [
        ("all-linear", None, (["all-linear"], [])),
        (["q_proj", "v_proj"], ["lm_head"], (["q_proj", "v_proj"], ["lm_head"])),
    ],
)
def test_an_adapter_is_written_part_by_part(judge, modules, excluded, written):
    judged = judge(
        {
            f"{MODEL}.lora_rank": 16,
            f"{MODEL}.lora_alpha": 32,
            f"{MODEL}.target_modules": modules,
            f"{MODEL}.exclude_modules": excluded,
        }
    )
    assert judged.rejected == set()
    assert {path: v for path, v in judged.written.items() if path.startswith("policy.lora")} == {
        "policy.lora.rank": 16,
        "policy.lora.alpha": 32.0,
        "policy.lora.target_modules": written[0],
        "policy.lora.excluded_modules": written[1],
    }


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("target_modules", ".*proj"),
        ("target_modules", []),
        ("target_modules", None),
        ("exclude_modules", ".*visual.*"),
        ("lora_alpha", None),
    ],
)
def test_what_no_adapter_can_be_built_from_is_rejected(judge, leaf, value):
    judged = judge({f"{MODEL}.lora_rank": 8, f"{MODEL}.{leaf}": value})
    assert judged.rejected == {f"{MODEL}.{leaf}"}


def test_a_rank_that_no_server_of_the_pin_takes_is_rejected_unless_merged(judge):
    rank = f"{MODEL}.lora_rank"
    assert judge({rank: 512}).rejected == set()
    assert judge({rank: 513})[rank].classification == "unsupported"
    assert judge({rank: 513, f"{MODEL}.lora.merge": True}).rejected == set()


def test_an_adapter_to_start_from_is_unsupported_where_upstream_never_loads_it(judge):
    path = f"{MODEL}.lora_adapter_path"
    assert judge({path: "/a"})[path].classification == "unsupported"
    started = judge({path: "/a", f"{MODEL}.lora_rank": 8})
    assert started.rejected == set()
    assert started[path].target == "policy.adapter_sha256"
    assert judge({f"{MODEL}.lora_rank": 8})[path].target is None


def test_another_attention_is_accepted_and_another_shape_is_not(judge):
    attention = f"{MODEL}.override_config.attn_implementation"
    assert judge({attention: "sdpa"})[attention].classification == "locally_lowered"
    shape = f"{MODEL}.override_config.model_config.num_hidden_layers"
    assert judge({shape: 2})[shape].classification == "not_implemented"


def test_a_rejected_mechanism_is_rejected_once_and_not_for_its_copies(judge):
    judged = judge({f"{ACTOR}.fsdp_config.qat.enable": True, f"{ACTOR}.strategy": "megatron"})
    assert judged.rejected == {f"{ACTOR}.fsdp_config.qat.enable", f"{ACTOR}.strategy"}
    alone = judge({"actor_rollout_ref.rollout.qat.enable": True})
    assert alone.rejected == {"actor_rollout_ref.rollout.qat.enable"}


def test_the_reference_is_read_for_a_kl_term_without_an_adapter_only(judge):
    dtype = {f"{REF}.fsdp_config.model_dtype": "bf16"}
    kl = {f"{ACTOR}.use_kl_loss": True}
    assert judge(dtype).rejected == set()
    assert judge(dtype | kl | {f"{MODEL}.lora_rank": 8}).rejected == set()
    assert judge(dtype | kl).rejected == set(dtype)


def test_the_reference_has_no_other_dtype_than_the_policy(judge):
    kl = {f"{ACTOR}.use_kl_loss": True}
    assert judge(kl | {f"{REF}.fsdp_config.model_dtype": None}).rejected == {
        f"{REF}.fsdp_config.model_dtype"
    }
