"""The determinism of a record: which tiers were reached, each by a comparison that was made and that is kept.

    same_process      one process computed the beginning of a step twice (engine/determinism.py)
    new_process       two straight launches, or a straight and a resumed one, left the same files
    batch_invariant   the same prompts were sampled with other rows beside them, in another order, with refill

A verdict is `proven` or `failed` by what was compared, `not_measured` where nothing was.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from miniverl.bench.finding import Mistake, pointer

Json = Mapping[str, Any]

_TITLES = {
    "same_process": "in one process",
    "new_process": "in a new process",
    "batch_invariant": "in other batches",
}


def stated(launches: Sequence[Json], resume_status: str, compared: Json | None) -> dict[str, Any]:
    """The block of a record; `compared` is what the engine left in determinism.json."""
    block: dict[str, Any] = {
        "same_process": _verdict(compared, "same_process"),
        "new_process": _new_process(launches, resume_status),
        "batch_invariant": _verdict(compared, "batch_invariant"),
    }
    return block if compared is None else block | {"compared": compared}


def mistakes(record: Json) -> Iterator[Mistake]:
    """Verdicts that do not follow from what was compared, and counts that contradict each other."""
    block = record["determinism"]
    expected = stated(record["launches"], record["resume"]["status"], block.get("compared"))
    for tier in _TITLES:
        if block[tier] != expected[tier]:
            reason = "does not follow from what the record says was compared"
            yield Mistake(pointer("determinism", tier), block[tier], reason, expected[tier])
    for index, each in enumerate(block.get("compared", {}).get("comparisons", ())):
        yield from _miscounted(each, "determinism", "compared", "comparisons", index)
    if "compared" in block:
        each = block["compared"]["sampler_and_scorer"]
        yield from _miscounted(each, "determinism", "compared", "sampler_and_scorer")


def rows(record: Json) -> Iterator[tuple[str, str]]:
    """For people: each tier, then what was not equal and by how much, then what nothing controls."""
    block = record["determinism"]
    for tier, title in _TITLES.items():
        yield f"equal bytes {title}", str(block[tier]).replace("_", " ")
    compared = block.get("compared")
    if compared is None:
        return
    for each in compared["comparisons"]:
        if each["differing"]:
            yield f"{each['what']}, {each['how']}", _apart(each)
    sampler = compared["sampler_and_scorer"]
    yield f"{sampler['what']} {sampler['how']}", _apart(sampler)
    counts = (
        f"{compared['rows']} rows of {compared['prompts']} prompts, {compared['tokens']} tokens"
    )
    yield "compared in", f"{counts}, step {compared['step']}, {compared['seconds']:.1f} s"
    for caveat in compared["caveats"]:
        yield "not controlled", caveat


def lines(record: Json) -> Iterator[str]:
    """In short: the tiers, what broke one, and how near the sampler comes to the scorer."""
    block = record["determinism"]
    told = (f"{title} {block[tier].replace('_', ' ')}" for tier, title in _TITLES.items())
    yield "equal bytes " + ", ".join(told)
    if "compared" in block:
        yield from doubts(block["compared"])
        sampler = block["compared"]["sampler_and_scorer"]
        yield f"{sampler['what']} {sampler['how']}: {_apart(sampler, names_first=False)}"


def doubts(compared: Json) -> Iterator[str]:
    """What had to be equal and was not."""
    for each in compared["comparisons"]:
        if each["has_to_be_equal"] and each["differing"]:
            yield f"{each['what']} differed, {each['how']}: {_apart(each)}"


def _verdict(compared: Json | None, tier: str) -> str:
    made = [
        each["differing"]
        for each in ([] if compared is None else compared["comparisons"])
        if each["tier"] == tier and each["has_to_be_equal"] and each["values"]
    ]
    if not made:
        return "not_measured"
    return "failed" if any(made) else "proven"


def _new_process(launches: Sequence[Json], resume_status: str) -> str:
    """Of the files that straight launches left, or a straight and a resumed one."""
    outputs = [
        each["outputs"] for each in launches if each["role"] == "straight" and each["outputs"]
    ]
    if resume_status == "mismatch" or any(other != outputs[0] for other in outputs[1:]):
        return "failed"
    return "proven" if len(outputs) > 1 or resume_status == "exact_match" else "not_measured"


def _miscounted(each: Json, *path: str | int) -> Iterator[Mistake]:
    differing, is_equal = each["differing"], each["differing"] == 0
    if differing > each["values"]:
        field = pointer(*path, "differing")
        yield Mistake(field, differing, f"{each['values']} values were compared")
    if is_equal != (each["first_difference"] is None):
        field = pointer(*path, "first_difference")
        yield Mistake(field, each["first_difference"], f"{differing} values differ")
    if is_equal and each["largest_difference"] != 0:
        field = pointer(*path, "largest_difference")
        yield Mistake(field, each["largest_difference"], "no value differs", 0)


def _apart(each: Json, *, names_first: bool = True) -> str:
    if not each["differing"]:
        return f"all {each['values']} equal"
    largest = each["largest_difference"]
    by = "not a number" if largest is None else f"by up to {largest:.2g}"
    told = f"{each['differing']} of {each['values']} differ, {by}"
    return f"{told}; first {each['first_difference']}" if names_first else told
