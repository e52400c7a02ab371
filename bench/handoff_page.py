"""README.md of a bundle: how to start it, what is proven of it, and what is not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_DIFFERENCES: Mapping[str, str] = {
    "physical_runtime": "the run here used {local}; this launch takes {source} again",
    "distributed_only": "one device here; this launch takes {source} again",
    "local_value": "the run here used {local}; this launch takes {source} again",
    "frozen": "only running the source script could tell it; it stands as {local}",
    "binding": "the run here held or computed in {local}; this launch takes {source} again",
}
_READS = {
    "adapter": "`adapter/`, read by peft over `model/`,",
    "merged": "`model/`, the adapter merged into it, read by transformers,",
    "model": "`model/`, read by transformers,",
}
_STARTS_ANEW = (
    "the optimizer, the critic's too: both moments of AdamW begin at zero",
    "the learning rates' schedules and warm-ups, and the count of steps",
    "the place in the data: the first epoch begins again",
    "the coefficient of an adaptive KL controller",
)


def page(manifest: Mapping[str, Any]) -> str:
    """The text, the same for equal manifests."""
    return "\n".join(_lines(manifest)) + "\n"


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    target, run, kind = manifest["target"], manifest["run"], manifest["kind"]
    proof = manifest["proof"]["policy"]
    yield f"# A run of {run['steps']} steps, handed over to verl {target['verl']}"
    yield ""
    yield "    sha256sum -c SHA256SUMS"
    yield "    bash launch.sh                                # further overrides may follow"
    yield "    miniverl handoff --check . --python PYTHON    # PYTHON has verl and vllm"
    yield ""
    yield f"Source: {run['source']['description']}. Recipe `{run['recipe_sha256']}`."
    yield ""
    yield "## Proven when this was written"
    yield ""
    yield (
        f"- {_READS[kind]} computes the logits of the engine's model: largest difference {proof['max_difference']:.2g} at "
        f"{proof['positions']} positions, of logits up to {proof['largest']:.3g}; the base model's are up to "
        f"{proof['change']:.2g} away."
    )
    if "critic" in manifest["proof"]:
        yield _critic(manifest["proof"]["critic"])
    yield (
        "- `launch.sh`, read by miniverl's compiler with the files here, means the recipe that was run, but for the "
        "weights it starts from."
    )
    yield "- Every file is listed in `SHA256SUMS`; every tensor is finite."
    yield ""
    yield "## Not proven"
    yield ""
    yield (
        f"- That verl {target['verl']} starts: `miniverl handoff --check` asks its own `validate_config` and dataclasses, "
        "where it is installed, and says `launchable` only then."
    )
    yield "- Anything on several devices: `distributed_execution_tested` is false."
    yield "- That the reward goes on rising."
    yield ""
    yield "## What begins anew"
    yield ""
    for text in _STARTS_ANEW:
        yield f"- {text}"
    if kind == "merged":
        yield "- the adapter: a new one of the same rank, beside what the run's own was merged into"
    if kind != "adapter":
        yield "- the reference model, where the launch has one: it is what this launch starts from, and not what the run did"
    if not run["validates"]:
        yield "- validation had no rows here; upstream needs some, and the training rows stand in"
    if proof["held_difference"]:
        yield ""
        yield "## The weights below the adapter are others"
        yield ""
        yield _held(proof)
    if manifest["departures"]:
        yield ""
        yield "## Where upstream differs from the run here"
        yield ""
        yield from map(_departure, manifest["departures"])
    if manifest["stated"]:
        yield ""
        yield "## What the run stated on top of its launch, and this launch keeps"
        yield ""
        for row in manifest["stated"]:
            yield f"- `{row['source_field']}`: {_short(row['source_value'])} -> {_short(row['local_value'])}"


def _critic(proof: Mapping[str, Any]) -> str:
    return (
        f"- `critic/`, read by transformers as a token classifier with one label, gives the values of the engine's critic: "
        f"largest difference {proof['max_difference']:.2g}, of values up to {proof['largest']:.3g}."
    )


def _held(proof: Mapping[str, Any]) -> str:
    return (
        "The run held them in 4 bits, and the adapter was trained over those; upstream's workers hold no such weights, so "
        "this launch puts the adapter over `model/` as it was before. That moves the logits by up to "
        f"{proof['held_difference']:.2g}, where training moved them by up to {proof['change']:.2g}. A bundle written with "
        "`--merged` has the weights that the run computed with."
    )


def _departure(row: Mapping[str, Any]) -> str:
    told = _DIFFERENCES[row["kind"]].format(
        local=_short(row["local_value"]), source=_short(row["source_value"])
    )
    return f"- `{row['source_field']}`: {told}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else text[:77] + "..."
