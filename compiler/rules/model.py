"""`model` of the policy and of a critic, and the direct leaves of `actor_rollout_ref`: which weights are trained.

Sources: verl/workers/config/model.py:72-270, verl/workers/engine/fsdp/transformer_impl.py:318-375.
"""

from typing import Any

from miniverl.compiler.bound_quantization import POLICY
from miniverl.compiler.rule import (
    Class,
    Context,
    Limit,
    Rule,
    Verdict,
    dead,
    lowers,
    notes,
    reject,
    requires,
    section,
)
from miniverl.compiler.rules.limits import is_number, truth, whole
from miniverl.compiler.rules.repeated import keeps_class, mtp, off, placed, tuned
from miniverl.compiler.rules.switches import critic_shares_weights, uses_lora

_MODEL = "actor_rollout_ref.model"
_CRITIC = "critic.model"
_LARGEST_SERVED_RANK = 512  # vLLM's, which upstream asks (workers/rollout/vllm_rollout/utils.py:92)
_NO_LORA = "not read: lora_rank is 0, so that every weight is trained"


def trained_model(model: str, part: str) -> tuple[Rule, ...]:
    """The rules of the section `model`, but for what names the weights and what writes prompts.

    `part` is where its recipe stands.
    """
    return (
        keeps_class(f"{model}._target_"),
        _same_folder(model, "hf_config_path"),
        off(
            f"{model}.trust_remote_code",
            False,
            what="running code that comes with the weights",
            because="code that comes with the weights is never run here",
            fix=f"Set {model}.trust_remote_code=False, and bind a model that transformers knows",
        ),
        off(
            f"{model}.external_lib",
            None,
            what="importing a module of the user's",
            because="a module named in a launch is never imported here",
            fix=f"Set {model}.external_lib=null",
        ),
        _override_config(model),
        lowers(
            f"{model}.enable_gradient_checkpointing",
            f"{part}.checkpoints_activations",
            "computes activations twice to hold fewer of them, as upstream",
            classification=Class.LOWERED,
            limit=truth(f"{model}.enable_gradient_checkpointing"),
        ),
        *placed(f"{model}.enable_activation_offload", f"{model}.use_shm"),
        *tuned(
            f"{model}.use_remove_padding",
            f"{model}.use_liger",
            f"{model}.use_fused_kernels",
            f"{model}.fused_kernel_options.impl_backend",
        ),
        *(
            dead(
                f"{model}.tiled_mlp.{name}",
                "nothing reads it: no model is built with tiles at the pin",
            )
            for name in ("enabled", "num_shards")
        ),
        *_adapter(model, part),
        mtp(model),
    )


def _adapter(model: str, part: str) -> tuple[Rule, ...]:
    target = f"{part}.lora"

    def read_if(context: Context) -> bool:
        return uses_lora(context, model)

    return (
        _lora_rank(model, target),
        lowers(
            f"{model}.lora_alpha",
            f"{target}.alpha",
            "the adapter is scaled by alpha over rank",
            to=float,
            limit=Limit(
                accepts=is_number,
                because="the scale of an adapter is a number",
                fix=f"Set {model}.lora_alpha to a number",
            ),
            read_if=read_if,
            unread=_NO_LORA,
        ),
        lowers(
            f"{model}.target_modules",
            f"{target}.target_modules",
            "the layers that get an adapter; all-linear leaves the head out, as peft does",
            to=lambda value: [value] if isinstance(value, str) else list(value),
            limit=_target_modules(f"{model}.target_modules"),
            read_if=read_if,
            unread=_NO_LORA,
        ),
        lowers(
            f"{model}.exclude_modules",
            f"{target}.excluded_modules",
            "the layers that get no adapter all the same",
            to=lambda value: list(value or ()),
            limit=_excluded_modules(f"{model}.exclude_modules"),
            read_if=read_if,
            unread=_NO_LORA,
        ),
        _adapter_path(model, f"{part}.adapter_sha256"),
        section(
            f"{model}.lora.*",
            off(
                f"{model}.lora.rank",
                0,
                what="adapters of Megatron workers",
                otherwise=Class.UNSUPPORTED,
                because="the FSDP workers build no adapter from it, while the trainer believes they do",
                fix=f"Set {model}.lora.rank=0 and {model}.lora_rank instead",
            ),
            notes(
                f"{model}.lora.merge",
                Class.LOWERED,
                "how upstream hands an adapter to its inference server; the local sampler merges it",
                label="own sampler",
            ),
            dead("*", "nothing reads it: adapters of Megatron workers are set up here"),
        ),
    )


def _policy_weights(field: str, value: Any, context: Context) -> Verdict:
    return Verdict(
        classification=Class.CONFORMANT,
        reason="names the weights; the recipe holds the digest of the model bound for it",
        label="policy weights",
        target="policy.weights_sha256",
        lowered=context.bindings["model"],
    )


def _critic_weights(field: str, value: Any, context: Context) -> Verdict:
    """A backbone with a new head of one output (workers/engine/fsdp/transformer_impl.py, value models)."""
    target = "critic.weights_sha256"
    bound = context.bindings["critic"]
    if bound is None and critic_shares_weights(context):
        return Verdict(
            classification=Class.CONFORMANT,
            reason="names the policy's own weights, so that the bound model is the critic's backbone too",
            label=target,
            target=target,
            lowered=context.bindings["model"],
        )
    return Verdict(
        classification=Class.CONFORMANT,
        reason="names the critic's backbone; the recipe holds the digest of the folder bound for it",
        label=target,
        target=target,
        lowered=bound,
    )


def _same_folder(model: str, name: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        path = context.leaves[f"{model}.path"]
        if value is None or value == path:
            return Verdict(
                classification=Class.EXACT,
                reason="read from the folder of the weights",
                label="weights",
            )
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="weights, configuration and tokenizer come from one bound folder here",
            fix=f"Set {field}=null, and bind a folder that holds all of them",
        )

    return Rule(f"{model}.{name}", judge)


def _override_config(model: str) -> Rule:
    """Sets attributes of the model's configuration; the whole mapping is one leaf while it is empty."""

    def judge(field: str, value: Any, context: Context) -> Verdict:
        if field == f"{model}.override_config" and not value:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="off, as upstream's default: changes to the model's configuration",
            )
        if field == f"{model}.override_config.attn_implementation":
            return Verdict(
                classification=Class.LOWERED,
                reason="another way to the same attention upstream; the local run uses its own",
                label="scoring",
            )
        return Verdict(
            classification=Class.NOT_IMPLEMENTED,
            reason="the bound model is used as it is, and this changes what it computes",
            fix=f"Remove {field}, and bind a model with this configuration",
        )

    return Rule(f"{model}.override_config*", judge)


def _lora_rank(model: str, target: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        limit = whole(field, at_least=0)
        if not limit.accepts(value):
            return reject(limit)
        if value == 0 and model == _MODEL and POLICY in context.bindings["quantised"]:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="weights of 4 bits are frozen: without an adapter nothing would be trained",
                fix=f"Set {field} to at least 1, or leave the policy's weights as they are",
            )
        if value == 0:
            return Verdict(
                classification=Class.EXACT,
                reason="no adapter: every weight is trained",
                label=target,
                target=target,
                lowered=None,
            )
        if model == _CRITIC:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason="the pin adapts a critic as if it wrote text: it stops there, or with older releases of "
                "transformers leaves the critic's new head untrained",
                fix=f"Set {field}=0, which trains every weight of the critic",
            )
        served = context.leaves["actor_rollout_ref.rollout.name"] == "vllm"
        merged = bool(context.leaves[f"{model}.lora.merge"])
        if value > _LARGEST_SERVED_RANK and served and not merged:
            return Verdict(
                classification=Class.UNSUPPORTED,
                reason=f"the inference server of the pin takes no adapter of a rank above {_LARGEST_SERVED_RANK}",
                fix=f"Set {field} to at most {_LARGEST_SERVED_RANK}, or {model}.lora.merge=True",
            )
        return Verdict(
            classification=Class.EXACT,
            reason="the rank of the adapter; the weights below it stay as they are",
            label=f"{target}.rank",
            target=f"{target}.rank",
            lowered=value,
        )

    return Rule(f"{model}.lora_rank", judge)


def _adapter_path(model: str, target: str) -> Rule:
    def judge(field: str, value: Any, context: Context) -> Verdict:
        if value is None:
            return Verdict(
                classification=Class.INFORMATIONAL,
                reason="off, as upstream's default: going on from an adapter trained before",
            )
        if uses_lora(context, model):
            return Verdict(
                classification=Class.CONFORMANT,
                reason="names the adapter that is trained on, in place of a new one; the recipe holds the digest of "
                "the folder bound for it, whose own rank and scale must be the launch's",
                label="policy adapter",
                target=target,
                lowered=context.bindings["adapter"],
            )
        return Verdict(
            classification=Class.UNSUPPORTED,
            reason="with lora_rank 0 the pin never loads it",
            fix=f"Set {field}=null",
        )

    return Rule(f"{model}.lora_adapter_path", judge)


def _names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(name) is str and name for name in value)
    )


def _target_modules(field: str) -> Limit:
    return Limit(
        accepts=lambda value: value == "all-linear" or _names(value),
        because="a pattern over module names, or none at all, selects nothing here",
        fix=f"Set {field}=all-linear, or to a list of module names such as [q_proj,v_proj]",
        otherwise=Class.NOT_IMPLEMENTED,
    )


def _excluded_modules(field: str) -> Limit:
    return Limit(
        accepts=lambda value: value is None or value == [] or _names(value),
        because="a pattern over module names is not read here",
        fix=f"Set {field}=null, or to a list of module names",
        otherwise=Class.NOT_IMPLEMENTED,
    )


RULES: tuple[Rule, ...] = (
    requires(
        "actor_rollout_ref.hybrid_engine",
        True,
        classification=Class.CONFORMANT,
        reason="sampling and training share the device",
        label="placement",
        otherwise=Class.UNSUPPORTED,
        because="the pin has no trainer that keeps sampling and training apart under this switch",
        fix="Set actor_rollout_ref.hybrid_engine=True",
    ),
    dead(
        "actor_rollout_ref.nccl_timeout", "nothing reads it: the FSDP workers set no such time-out"
    ),
    *trained_model(_MODEL, "policy"),
    Rule(f"{_MODEL}.path", _policy_weights),
    _same_folder(_MODEL, "tokenizer_path"),
    off(
        f"{_MODEL}.custom_chat_template",
        None,
        what="another chat template than the tokenizer's",
        because="prompts are written with the chat template of the bound model",
        fix=f"Set {_MODEL}.custom_chat_template=null, and bind a model with this template",
    ),
)

CRITIC_MODEL: tuple[Rule, ...] = (
    *trained_model(_CRITIC, "critic"),
    Rule(f"{_CRITIC}.path", _critic_weights),
    *(
        dead(f"{_CRITIC}.{name}", "not read: a critic is given tokens, and writes no prompt")
        for name in ("tokenizer_path", "custom_chat_template")
    ),
)

APPENDED: tuple[Rule, ...] = (
    off(
        f"{_MODEL}.target_parameters",
        None,
        what="adapters on single parameters",
        because="adapters stand on linear layers here",
        fix=f"Remove {_MODEL}.target_parameters",
    ),
)
