"""What was measured against what was wanted: ratios round by round, their median, and whether it is within its bounds."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

# Batch -> how many times the peer's tokens per second.
_ROLLOUT: Mapping[str, Mapping[int, float]] = {
    "transformers": {8: 3.0, 32: 3.0},
    "llama.cpp": {1: 0.6, 8: 1.0, 32: 1.0},
    "loop": {4: 8.0, 8: 12.0, 32: 12.0},
}
_STEP = {"float32": 1 / 3, "bfloat16": 1 / 2.5}  # of TRL's seconds
_UPDATE = {"update": 1.3, "score": 1.8}
_REFILL = 1.5
_DOUBLED = 2.05
_LOSS_MEMORY = (
    1.1  # of the larger vocabulary over the smaller: the same, but for what an allocator rounds
)
_PREDICTED = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """`least` and `most` bound the median; None: open."""

    part: str
    name: str
    ratios: tuple[float, ...]
    least: float | None = None
    most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_met(self) -> bool:
        least = float("-inf") if self.least is None else self.least
        most = float("inf") if self.most is None else self.most
        return least <= self.median <= most

    def plain(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "name": self.name,
            "ratios": list(self.ratios),
            "median": self.median,
            "least": self.least,
            "most": self.most,
            "is_met": self.is_met,
        }


def ratios(parts: Mapping[str, Json]) -> list[Ratio]:
    """Of every part that was measured, in order."""
    return [ratio for name, part in parts.items() for ratio in _OF[name](part["cells"])]


def per_second(answers: Sequence[Json]) -> list[float]:
    return [each["tokens"] / each["seconds"] for each in answers]


def _rollout(cells: Sequence[Json]) -> Iterator[Ratio]:
    loops = {
        cell["facts"]["dtype"]: per_second(cell["answers"]["loop"])
        for cell in cells
        if "loop" in cell["answers"]
    }
    for cell in cells:
        ours = per_second(cell["answers"]["ours"])
        for peer, bounds in _ROLLOUT.items():
            least = bounds.get(cell["facts"]["batch"])
            if least is None:
                continue
            if peer == "loop":
                theirs = loops[cell["facts"]["dtype"]]
            else:
                theirs = per_second(cell["answers"][peer])
            name = f"tokens/s over {peer}, {cell['name']}"
            yield Ratio(part="rollout", name=name, ratios=_over(ours, theirs), least=least)


def _step(cells: Sequence[Json]) -> Iterator[Ratio]:
    for cell in cells:
        ours, theirs = cell["answers"]["ours"], cell["answers"]["trl"]
        bound = _STEP[cell["facts"]["dtype"]]
        yield Ratio(
            part="step",
            name=f"seconds over TRL's, {cell['name']}",
            ratios=_over(_seconds(ours), _seconds(theirs)),
            most=bound,
        )
        yield Ratio(
            part="step",
            name=f"peak memory over TRL's, {cell['name']}",
            ratios=(_peak(ours) / _peak(theirs),),
            most=1.0,
        )


def _refill(cells: Sequence[Json]) -> Iterator[Ratio]:
    for cell in cells:
        padded, refilled = (_seconds(cell["answers"][way]) for way in ("padded", "refilled"))
        name = f"speed over padded batches, {cell['name']}"
        yield Ratio(part="refill", name=name, ratios=_over(padded, refilled), least=_REFILL)
        are_equal = float(cell["facts"]["tokens_are_equal"])
        name = f"same tokens, {cell['name']}"
        yield Ratio(part="refill", name=name, ratios=(are_equal,), least=1.0)


def _update(cells: Sequence[Json]) -> Iterator[Ratio]:
    for cell in cells:
        if "vocabularies" in cell["facts"]:
            small, large = (
                _peak(cell["answers"][str(each)]) for each in cell["facts"]["vocabularies"]
            )
            name = "peak memory of the loss, vocabulary 151,936 over 49,152"
            yield Ratio(part="update", name=name, ratios=(large / small,), most=_LOSS_MEMORY)
            continue
        theirs, ours = (_seconds(cell["answers"][who]) for who in ("plain", "ours"))
        yield Ratio(
            part="update",
            name=f"speed over transformers and peft, {cell['name']}",
            ratios=_over(theirs, ours),
            least=_UPDATE[cell["facts"]["work"]],
        )


def _growth(cells: Sequence[Json]) -> Iterator[Ratio]:
    for cell in cells:
        sizes, answers = cell["facts"]["sizes"], cell["answers"]
        by_size = {(each["prompts"], each["new_tokens"]): name for name, each in sizes.items()}
        for (prompts, tokens), name in by_size.items():
            doubled = by_size.get((2 * prompts, tokens))
            if doubled is not None:
                yield Ratio(
                    part="growth",
                    name=f"seconds of {2 * prompts} prompts over {prompts}",
                    ratios=_over(_seconds(answers[doubled]), _seconds(answers[name])),
                    most=_DOUBLED,
                )
            longer = by_size.get((prompts, 4 * tokens))
            if longer is not None:
                grown = _over(_seconds(answers[longer]), _seconds(answers[name]))
                predicted = _least(sizes[longer]) / _least(sizes[name])
                yield Ratio(
                    part="growth",
                    name=f"seconds of {4 * tokens} tokens over {tokens}, over the roofline's {predicted:.2f}",
                    ratios=tuple(each / predicted for each in grown),
                    least=1 - _PREDICTED,
                    most=1 + _PREDICTED,
                )


_OF = {
    "rollout": _rollout,
    "step": _step,
    "refill": _refill,
    "update": _update,
    "growth": _growth,
}


def _over(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def _seconds(answers: Sequence[Json]) -> list[float]:
    return [each["seconds"] for each in answers]


def _peak(answers: Sequence[Json]) -> int:
    return max(int(each["peak_bytes"]) for each in answers)


def _least(size: Json) -> float:
    return float(sum(size["least_seconds"].values()))
