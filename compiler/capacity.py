"""Does a launch fit into a device's memory, and by how much: counted from config.json files, part by part.

Every part has the phases in which it is held; a phase takes the sum of its parts, and the largest phase is the
peak. Lengths are the longest that the launch allows. Loads no torch.

Axes of the counts: U prompts and B responses of one bin, T and R their longest lengths, H hidden, Q query width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from miniverl.engine.footprint import (
    DTYPE_BYTES,
    ModelShape,
    adapter_parameters,
    cache_bytes_per_token,
    model_shape,
    parameters,
    weight_bytes,
)
from miniverl.engine.problem import WrongCall
from miniverl.engine.recipe import Lora

GIB = 2**30
PHASES = ("rollout", "score", "score_teacher", "reward", "critic_update", "update")
# Interpreter, libraries and their buffers, beside tensors: measured as a run's memory before its first step, less its
# weights (0.6 GB on a CPU); a CUDA context and its libraries' workspaces are about as much.
PROCESS_BYTES = 600_000_000
_CHUNK_LOGITS = 256 * 49152  # that exist at once (engine/score.py)
_LOGITS_COPIES = {False: 2, True: 4}  # scored; differentiated
_MOST_ROWS, _MOST_CACHE_TOKENS = 256, 32_768  # decoded at once (engine/sample.py)
_DECODE_COPIES = 3  # logits, their probabilities, their order
_MOMENTS = 2
NF4_LORA_RANK = 16
_DENSE_BYTES = 5  # beside the product's own type, of a quantised weight that is taken back: float32, and its codes


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    role: str
    part: str
    bytes: int
    phases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The largest bin of tokens that is computed at once, and what is decoded at once."""

    prompts: int
    responses: int
    prompt_tokens: int
    response_tokens: int
    decoded_rows: int

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt_tokens + self.responses * self.response_tokens


def assess(
    lowered: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    *,
    gpu: str,
    memory_bytes: int,
) -> dict[str, Any]:
    """The answer for a device, as plain JSON values.

    `lowered` is the launch as recipe values, nested; `configs` has the config.json of each role: model, critic,
    reward_model, teacher or teacher.KEY. A role without one is missing, and then nothing is promised.
    """
    wanted = roles(lowered)
    shapes, missing = _shapes(configs, wanted)
    answer: dict[str, Any] = {"gpu": gpu, "memory_bytes": memory_bytes, "missing": missing}
    if "model" not in shapes:
        return {**answer, "answer": "unknown"}
    as_launched = _told(parts(lowered, shapes), memory_bytes)
    small = _told(parts(_in_nf4(lowered), shapes), memory_bytes)
    fits = as_launched["free_bytes"] >= 0
    otherwise = "fits_with_nf4_lora" if small["free_bytes"] >= 0 else "does_not_fit"
    found = "fits" if fits else otherwise
    if missing and fits:
        found = "unknown"
    return {**answer, "answer": found, **as_launched, "nf4_lora": small}


def roles(lowered: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that the launch runs."""
    distillation = lowered.get("distillation") or {}
    teachers = distillation.get("teachers") or []
    wanted = {
        "model": True,
        "critic": bool(lowered.get("critic")),
        "reward_model": bool((lowered.get("reward") or {}).get("model")),
        **{"teacher" if one["key"] is None else f"teacher.{one['key']}": True for one in teachers},
    }
    return tuple(role for role, is_run in wanted.items() if is_run)


def parts(lowered: Mapping[str, Any], shapes: Mapping[str, ModelShape]) -> tuple[Part, ...]:
    """What is held, and when."""
    policy = lowered["policy"]
    batch = batch_of(lowered)
    found = [Part(role="process", part="process", bytes=PROCESS_BYTES, phases=PHASES)]
    found += _trained("policy", "update", policy, shapes["model"], batch)
    found += _sampled(lowered, shapes["model"], batch)
    has_reference = bool(lowered.get("kl_loss") or lowered.get("kl_reward"))
    if has_reference and not policy.get("lora"):
        found.append(_weights("reference", shapes["model"], policy["parameter_dtype"], None))
    if lowered.get("critic") and "critic" in shapes:
        critic = lowered["critic"]
        found += _trained("critic", "critic_update", critic, shapes["critic"], batch)
    for role, shape in shapes.items():
        if role == "reward_model" or role.partition(".")[0] == "teacher":
            phase = "reward" if role == "reward_model" else "score_teacher"
            dtype, quantization = policy["compute_dtype"], _asked(lowered)[role]
            found.append(_weights(role, shape, dtype, quantization))
            found += _forward(role, phase, shape, batch, DTYPE_BYTES[dtype])
            if quantization is not None:
                found.append(_dense(role, (phase,), shape, DTYPE_BYTES[dtype]))
    return tuple(found)


def batch_of(lowered: Mapping[str, Any]) -> Batch:
    """Whole groups, for as long as the budget of tokens lasts; one response at least."""
    rollout, data, update = lowered["rollout"], lowered["data"], lowered["update"]
    samples = rollout["samples_per_prompt"]
    prompt, response = data["max_prompt_tokens"], rollout["max_response_tokens"]
    budget = max(update["micro_batch_tokens"], prompt + response)
    group = prompt + samples * response
    groups = min(budget // group, update["prompts_per_mini_batch"])
    if groups:
        prompts, responses = groups, groups * samples
    else:
        prompts, responses = 1, max(1, (budget - prompt) // response)
    rows = data["prompts_per_step"] * samples
    fitting = min(_MOST_ROWS, _MOST_CACHE_TOKENS // (prompt + response), rows)
    return Batch(
        prompts=prompts,
        responses=responses,
        prompt_tokens=prompt,
        response_tokens=response,
        decoded_rows=max(2, fitting),
    )


def activation_values(shape: ModelShape, batch: Batch) -> int:
    """What one layer keeps for its backward: inputs of its norms and products, and of its attention.

    4 H + Q + 4 mlp for each token; 4 Q for each prompt token; 2 Q (T + R) for the keys and values that each response
    attends to, repeated to the query heads, and 2 Q R for its queries and outputs.
    """
    per_token = 4 * shape.hidden + shape.query_width + 4 * shape.mlp
    prompts = 4 * shape.query_width * batch.prompts * batch.prompt_tokens
    longest = batch.prompt_tokens + 2 * batch.response_tokens
    responses = 2 * shape.query_width * batch.responses * longest
    return batch.tokens * per_token + prompts + responses


def _trained(
    role: str, phase: str, model: Mapping[str, Any], shape: ModelShape, batch: Batch
) -> Iterator[Part]:
    """A model that is trained in `phase` and scores in `score`: weights, optimizer, gradients, activations."""
    lora, quantization = _lora(model), model.get("quantization")
    counted = parameters(shape).total
    parameter_bytes = DTYPE_BYTES[model["parameter_dtype"]]
    value_bytes = DTYPE_BYTES[model["compute_dtype"]]
    trained = counted if lora is None else adapter_parameters(shape, lora)
    yield _weights(role, shape, model["parameter_dtype"], quantization)
    if lora is not None:
        yield Part(role=role, part="adapter", bytes=trained * parameter_bytes, phases=PHASES)
    moments = trained * _MOMENTS * parameter_bytes
    yield Part(role=role, part="optimizer", bytes=moments, phases=PHASES)
    yield Part(role=role, part="gradients", bytes=trained * parameter_bytes, phases=(phase,))
    if model["compute_dtype"] != model["parameter_dtype"]:
        cast = counted if quantization is None else shape.vocabulary * shape.hidden  # its head
        yield Part(
            role=role, part="cast weights", bytes=cast * value_bytes, phases=("score", phase)
        )
    if quantization is not None:
        yield _dense(role, ("score", phase), shape, value_bytes)
    one_layer = activation_values(shape, batch)
    is_checkpointed = model["checkpoints_activations"]
    kept = (
        shape.num_layers * batch.tokens * shape.hidden + one_layer
        if is_checkpointed
        else shape.num_layers * one_layer
    )
    yield Part(role=role, part="activations", bytes=kept * value_bytes, phases=(phase,))
    if role == "policy":
        yield _logits(role, phase, shape, batch, differentiated=True)
    yield from _forward(role, "score", shape, batch, value_bytes)


def _forward(
    role: str, phase: str, shape: ModelShape, batch: Batch, value_bytes: int
) -> Iterator[Part]:
    """Without gradients one layer's values exist at a time."""
    values = activation_values(shape, batch) * value_bytes
    yield Part(role=role, part="activations of a layer", bytes=values, phases=(phase,))
    if role != "critic" and role != "reward_model":
        yield _logits(role, phase, shape, batch, differentiated=False)


def _logits(
    role: str, phase: str, shape: ModelShape, batch: Batch, *, differentiated: bool
) -> Part:
    of_chunk = max(1, _CHUNK_LOGITS // shape.vocabulary)
    positions = min(of_chunk, batch.responses * batch.response_tokens)
    values = _LOGITS_COPIES[differentiated] * positions * shape.vocabulary
    return Part(role=role, part="logits of a chunk", bytes=values * 4, phases=(phase,))


def _sampled(lowered: Mapping[str, Any], shape: ModelShape, batch: Batch) -> Iterator[Part]:
    """The sampler's weights stay; its cache belongs to the rollout, and is let go by the next one.

    Over a copy these are all weights, merged; over quantised ones embedding, head and adapter in the sampler's type.
    """
    policy, dtype = lowered["policy"], lowered["rollout"]["dtype"]
    held = parameters(shape).total
    if lowered["rollout"].get("weights") is not None:
        lora = _lora(policy)
        assert lora is not None, "quantised weights are frozen"
        table = shape.vocabulary * shape.hidden
        copies = 1 if dtype == policy["parameter_dtype"] else 2  # of the table; the head is packed
        held = copies * table + adapter_parameters(shape, lora)
        yield _dense("sampler", ("rollout",), shape, 2 * DTYPE_BYTES[dtype])  # taken back, packed
    yield Part(role="sampler", part="weights", bytes=held * DTYPE_BYTES[dtype], phases=PHASES)
    longest = batch.prompt_tokens + batch.response_tokens
    cache = batch.decoded_rows * longest * cache_bytes_per_token(shape, dtype)
    yield Part(role="sampler", part="keys and values", bytes=cache, phases=PHASES)
    logits = _DECODE_COPIES * batch.decoded_rows * shape.vocabulary * 4
    yield Part(role="sampler", part="logits", bytes=logits, phases=("rollout",))


def _weights(role: str, shape: ModelShape, dtype: Any, quantization: Any) -> Part:
    held = weight_bytes(shape, dtype, quantization)
    return Part(role=role, part="weights", bytes=held, phases=PHASES)


def _dense(role: str, phases: tuple[str, ...], shape: ModelShape, value_bytes: int) -> Part:
    """The largest quantised weight, taken back for a product."""
    largest = max(inputs * outputs for inputs, outputs in shape.linears().values())
    held = largest * (_DENSE_BYTES + value_bytes)
    return Part(role=role, part="a layer's weight taken back", bytes=held, phases=phases)


def _asked(lowered: Mapping[str, Any]) -> dict[str, Any]:
    """What the models that are only asked are quantised in, by role."""
    reward_model = (lowered.get("reward") or {}).get("model") or {}
    found = {"reward_model": reward_model.get("quantization")}
    for one in (lowered.get("distillation") or {}).get("teachers") or ():
        role = "teacher" if one["key"] is None else f"teacher.{one['key']}"
        found[role] = one.get("quantization")
    return found


def _in_nf4(lowered: Mapping[str, Any]) -> dict[str, Any]:
    """The launch with what can be frozen in 4 bits and little else held; a critic is trained whole, as the pin must."""
    policy, nf4 = lowered["policy"], {"quantization": "nf4"}
    changed = {
        "compute_dtype": "bfloat16",
        "checkpoints_activations": True,
        "lora": policy.get("lora") or _EVERYWHERE,
    }
    small = {
        **lowered,
        "policy": {**policy, **changed, **nf4},
        "rollout": {**lowered["rollout"], "dtype": "bfloat16", "weights": "nf4"},
    }
    reward, distillation = lowered.get("reward") or {}, lowered.get("distillation")
    if reward.get("model"):
        small["reward"] = {**reward, "model": {**reward["model"], **nf4}}
    if distillation:
        teachers = [{**one, **nf4} for one in distillation["teachers"]]
        small["distillation"] = {**distillation, "teachers": teachers}
    return small


_EVERYWHERE: Mapping[str, Any] = {
    "rank": NF4_LORA_RANK,
    "alpha": 32.0,
    "target_modules": ["all-linear"],
    "excluded_modules": [],
}


def _lora(model: Mapping[str, Any]) -> Lora | None:
    plain = model.get("lora")
    if not plain:
        return None
    return Lora(
        rank=plain["rank"],
        alpha=plain["alpha"],
        target_modules=tuple(plain["target_modules"]),
        excluded_modules=tuple(plain["excluded_modules"]),
    )


def _shapes(
    configs: Mapping[str, Mapping[str, Any]], wanted: tuple[str, ...]
) -> tuple[dict[str, ModelShape], list[str]]:
    """Shapes of the roles, and those that none is known of."""
    shapes, missing = {}, []
    for role in wanted:
        try:
            shapes[role] = model_shape(configs[role], f"config.json of {role}")
        except (KeyError, WrongCall):  # not given, or of a family whose sizes are not known here
            missing.append(role)
    return shapes, missing


def _told(held: tuple[Part, ...], memory_bytes: int) -> dict[str, Any]:
    """Sums by phase, of the phases in which something is computed, and the parts of the largest one."""
    computed = {each.phases[0] for each in held if len(each.phases) == 1} | {"rollout", "score"}
    sums = {
        phase: sum(each.bytes for each in held if phase in each.phases)
        for phase in PHASES
        if phase in computed
    }
    peak = max(sums, key=lambda phase: sums[phase])
    return {
        "free_bytes": memory_bytes - sums[peak],
        "parts": [
            {"bytes": each.bytes, "part": each.part, "role": each.role}
            for each in held
            if peak in each.phases
        ],
        "peak_bytes": sums[peak],
        "peak_phase": peak,
        "phases": sums,
    }
