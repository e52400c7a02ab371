"""What one leaf of upstream's tree means: its default, who reads it there, and what becomes of it here."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from miniverl.compiler import profiles, upstream
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import parse
from miniverl.compiler.follows import FOLLOWS
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import Problem, WrongCall

# Per leaf the values that upstream takes, and the lines that read it; a leaf without lines is read by nothing.
READERS: Mapping[str, Mapping[str, Any]] = json.loads(
    (files("miniverl.compiler") / "readers.json").read_text(encoding="utf-8")
)


def explain(
    field: str, *, profile: str | None = None, progress: upstream.Progress = upstream.quiet
) -> dict[str, Any]:
    """The leaf as upstream ships it, judged with every other leaf at its default.

    Raises WrongCall, with the nearest name, for what is no leaf.
    """
    chosen = profiles.called(profile or profiles.DEFAULTS["hydra"])
    defaults = sources.defaults(chosen.config_name, version=chosen.verl, progress=progress)
    if field not in defaults:
        raise WrongCall([_no_leaf(field, defaults)])
    context = profiles.nothing_set(chosen, defaults, parse([]))
    verdict = chosen.table.judge(field, defaults[field], context)
    return {
        "classification": str(verdict.classification),
        "default": defaults[field],
        "field": field,
        "fix": verdict.fix,
        "follows": FOLLOWS.get(field),
        "local_target": verdict.label,
        "readers": READERS[field].get("readers", []),
        "reason": verdict.reason,
        "recipe_path": verdict.target,
        "type": READERS[field]["type"],
        "verl": chosen.pin.tag,
    }


def text(explained: Mapping[str, Any]) -> str:
    """The explanation for a terminal."""
    lines = [
        f"{explained['field']}  (verl {explained['verl']})",
        f"  default   {json.dumps(explained['default'])}   takes {explained['type']}",
        f"  here      {explained['classification']}: {explained['reason']}",
    ]
    if explained["recipe_path"]:
        lines.append(f"  recipe    {explained['recipe_path']}")
    if explained["fix"]:
        lines.append(f"  fix       {explained['fix']}")
    if explained["follows"]:
        lines.append(f"  follows   {explained['follows']}, until it is set itself")
    readers = ", ".join(explained["readers"]) or "nothing, on the path of the default trainer"
    lines.append(f"  read by   {readers}")
    return "\n".join(lines)


def _no_leaf(field: str, defaults: Mapping[str, Any]) -> Problem:
    below = [leaf for leaf in defaults if leaf.startswith(f"{field}.")]
    return Problem(
        field="field",
        value=field,
        origin="command line",
        reason=f"it is a section of {len(below)} leaves"
        if below
        else "upstream's tree has no such leaf",
        fix=f"Ask for one of them, such as {below[0]}"
        if below
        else did_you_mean(
            field, defaults, "Give a dotted path such as actor_rollout_ref.rollout.n"
        ),
    )
