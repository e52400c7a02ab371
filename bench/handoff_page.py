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
_STARTS_ANEW = (
    "the optimizer: both moments of AdamW begin at zero",
    "the learning rate's schedule and its warm-up, and the count of steps",
    "the place in the data: the first epoch begins again",
    "the coefficient of an adaptive KL controller",
)


def page(manifest: Mapping[str, Any]) -> str:
    """The text, the same for equal manifests."""
    return "\n".join(_lines(manifest)) + "\n"


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    target, run, proof = manifest["target"], manifest["run"], manifest["proof"]
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
        f"- `{manifest['kind']}/`, read by {'peft' if manifest['kind'] == 'adapter' else 'transformers'}, computes the "
        f"logits of the engine's model: largest difference {proof['max_difference']:.2g} at {proof['positions']} "
        f"positions, of logits up to {proof['largest_logit']:.3g}; the base model's are up to {proof['change']:.2g} away."
    )
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
    if manifest["kind"] == "model":
        yield "- the reference model: it is what this launch starts from, and no longer what the run started from"
    if not run["validates"]:
        yield "- validation had no rows here; upstream needs some, and the training rows stand in"
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


def _departure(row: Mapping[str, Any]) -> str:
    told = _DIFFERENCES[row["kind"]].format(
        local=_short(row["local_value"]), source=_short(row["source_value"])
    )
    return f"- `{row['source_field']}`: {told}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else text[:77] + "..."
