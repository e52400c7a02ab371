"""Raw samples of one launch, read from what its run folder and its parent tell; nothing is averaged here.

What follows from them is in derive.py. The shape is `launch` in schemas/record-v2.json; its times are seconds
since the creation of the process, on the clock that the journal shares with the parent.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from miniverl.bench.disk import file_sha256, folder_bytes
from miniverl.bench.resume import EXPORTS, LOGS, last_checkpoint

MAX_SAMPLES = 300
NOT_SUPPORTED = {"status": "not_supported"}
NOT_MEASURED = {"status": "not_measured"}
NOT_FINITE = {"status": "not_finite"}

_LARGEST = ("most_rows", "most_tokens")  # of a phase's physical batches
_MICROSECONDS = 6  # decimals
_COUNTS = (
    "responses",
    "response_tokens",
    "finished_responses",
    "longest_response",
    "prompt_tokens",
    "prompt_attended_tokens",
    "response_attended_tokens",
)


def launch(
    run_dir: Path,
    *,
    role: str,
    ordinal: int,
    pid: int,
    created_monotonic: float,
    interpreter_monotonic: float | None,
    ended_monotonic: float,
    exit_code: int,
    failure: tuple[str, str] | None,
    warmup_steps: int,
    peak_bytes: Mapping[str, int],
    samples: Sequence[Mapping[str, Any]] = (),
    telemetry_reasons: Sequence[str] = (),
    every_seconds: float = 1.0,
) -> dict[str, Any]:
    """One entry of `launches`.

    Several processes append to one journal: this launch is the lines of `pid` since its creation. Call it as
    soon as the process is gone, before a next one writes to the folder. `failure` is a code and a sentence.
    `peak_bytes` are peaks that the parent knows beyond the samples, by kind: rss, process, device. Each of
    `samples` holds monotonic_seconds and readings such as rss_bytes: a number, or the status in its place.
    """
    own = _Journal(run_dir / "journal.jsonl", pid, created_monotonic)
    steps = _steps(own, warmup_steps, _work(run_dir / "trajectories.jsonl"))
    numbers = {step["step"] for step in steps}
    started = own.first("run_started")
    is_finished = own.first("run_finished") is not None
    since_creation = None if interpreter_monotonic is None else own.since(interpreter_monotonic)
    return {
        "role": role,
        "ordinal": ordinal,
        "created_monotonic_seconds": round(created_monotonic, _MICROSECONDS),
        "ended_monotonic_seconds": round(ended_monotonic, _MICROSECONDS),
        "exit_code": exit_code,
        "is_finished": is_finished,
        "failure": None if failure is None else {"code": failure[0], "message": failure[1]},
        "interpreter_at_seconds": NOT_MEASURED if since_creation is None else since_creation,
        "imports_done_at_seconds": own.at_or_not(own.first("imports_done")),
        "started": None if started is None else own.fields(started),
        "model_loads": [own.fields(event) for event in own.all("model_loaded")],
        **_quantised(own),
        **_downshifts(own),
        "steps": steps,
        "outside_steps": [
            _without_zeros(own.fields(event))
            for event in own.all("phase_finished")
            if event["step"] not in numbers
        ],
        "checkpoints": [_without(own.fields(e), "folder") for e in own.all("checkpoint_saved")],
        "validations": [
            own.fields(event) | {"metrics": _finite(event["metrics"])}
            for event in own.all("validation_finished")
        ],
        "warnings": [own.fields(event) for event in own.all("warned")],
        "memory": _peaks(started, steps, peak_bytes, list(map(_numbers, samples))),
        "telemetry": {
            **_telemetry(samples, telemetry_reasons, own),
            "every_seconds": every_seconds,
            "samples_taken": len(samples),
        },
        "outputs": outputs(run_dir) if is_finished else None,
    }


def _quantised(own: "_Journal") -> dict[str, Any]:
    """Of a launch with weights of 4 bits: what they take, and what the policy is sampled over."""
    weights = [own.fields(event) for event in own.all("weights_quantised")]
    sampler = own.first("sampler_loaded")
    told = {"quantised_weights": weights} if weights else {}
    return told | ({} if sampler is None else {"sampler": own.fields(sampler)})


def _downshifts(own: "_Journal") -> dict[str, Any]:
    """What it computed with less at once, because memory did not suffice."""
    told = [own.fields(event) for event in own.all("downshifted")]
    return {"downshifts": told} if told else {}


def outputs(run_dir: Path) -> dict[str, str]:
    """sha256 of the logs, and of the adapter or model, that a finished run left."""
    return {name: each["sha256"] for name, each in _files(run_dir, (*LOGS, *EXPORTS)).items()}


def artifacts(run_dir: Path, workload_dir: Path) -> dict[str, Any]:
    """The measured fields of `artifacts`: the straight run's logs, last checkpoint and export."""
    checkpoint = last_checkpoint(run_dir)
    folders = EXPORTS if checkpoint is None else (checkpoint, *EXPORTS)
    return {
        "files": _files(run_dir, (*LOGS, *folders)),
        "total_run_bytes": folder_bytes(run_dir),
        "total_workload_bytes": folder_bytes(workload_dir),
    }


class _Journal:
    """The events of one process, and its clock."""

    def __init__(self, path: Path, pid: int, created: float) -> None:
        self._created = created
        self._events: list[dict[str, Any]] = []
        for event in _whole_lines(path):
            if event["pid"] == pid and event["monotonic_seconds"] >= created:
                if (
                    event["event"] == "imports_done"
                ):  # a process's first: what is before was another's,
                    self._events.clear()  # of an earlier boot, whose clock had gone further
                self._events.append(event)

    def all(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event["event"] == name]

    def first(self, name: str) -> dict[str, Any] | None:
        return next(iter(self.all(name)), None)

    def since(self, monotonic_seconds: float) -> float:
        return round(monotonic_seconds - self._created, _MICROSECONDS)

    def at(self, event: Mapping[str, Any]) -> float:
        return self.since(event["monotonic_seconds"])

    def at_or_not(self, event: Mapping[str, Any] | None) -> float | dict[str, str]:
        return NOT_MEASURED if event is None else self.at(event)

    def fields(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The event's own fields, seconds in microseconds, and when it happened."""
        own = _without(event, "event", "pid", "monotonic_seconds")
        if "seconds" in own:
            own["seconds"] = round(own["seconds"], _MICROSECONDS)
        return own | {"at_seconds": self.at(event)}


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that were written to their end: a kill can tear the last one.

    It is the last one for good: the next process to append moves it aside first (engine/journal.py).
    """
    if path.exists():
        content = path.read_bytes()
        yield from map(json.loads, content[: content.rfind(b"\n") + 1].splitlines())


def _steps(
    own: _Journal, warmup_steps: int, work: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    steps: dict[int, dict[str, Any]] = {}
    for event in own.all("step_started"):
        steps[event["step"]] = {
            "step": event["step"],
            "started_at_seconds": own.at(event),
            "finished_at_seconds": NOT_MEASURED,
            "seconds": NOT_MEASURED,
            "is_finished": False,
            "is_warmup": len(steps) < warmup_steps,
            "phases": {},
            "metrics": {},
            "memory": {},
            "work": NOT_MEASURED,
        }
    for event in own.all("phase_finished"):
        if event["step"] in steps:
            _add_phase(steps[event["step"]]["phases"], event["phase"], own.fields(event))
    for event in own.all("step_finished"):
        steps[event["step"]] |= {
            "finished_at_seconds": own.at(event),
            "seconds": round(event["seconds"], _MICROSECONDS),
            "is_finished": True,
            "metrics": _finite(event["metrics"]),
            "memory": {f"{name}_bytes": size for name, size in event["memory"].items()},
            "work": work.get(event["step"], NOT_MEASURED),
        }
    return list(steps.values())


def _add_phase(phases: dict[str, Any], name: str, fields: Mapping[str, Any]) -> None:
    """A phase may end several times in a step: its seconds and tokens add up."""
    before = phases.get(name, {"seconds": 0.0, "tokens": 0})
    phases[name] = {
        "seconds": round(before["seconds"] + fields["seconds"], _MICROSECONDS),
        "tokens": before["tokens"] + fields["tokens"],
        "at_seconds": fields["at_seconds"],
    }
    batches = {
        "batches": before.get("batches", 0) + fields.get("batches", 0),
        **{each: max(before.get(each, 0), fields.get(each, 0)) for each in _LARGEST},
    }
    phases[name] |= {each: count for each, count in batches.items() if count}


def _without_zeros(fields: dict[str, Any]) -> dict[str, Any]:
    """A phase has batches, or it says nothing of them."""
    return {
        name: value for name, value in fields.items() if value or name not in ("batches", *_LARGEST)
    }


def _work(path: Path) -> dict[int, dict[str, Any]]:
    """Step -> what the trajectories of that step show."""
    work: dict[int, dict[str, Any]] = {}
    for line in _whole_lines(path):
        step = work.setdefault(
            line["step"],
            {"prompt_ids": [], **dict.fromkeys(_COUNTS, 0)},
        )
        prompt, response = len(line["prompt_tokens"]), len(line["response_tokens"])
        if line["prompt_id"] not in step["prompt_ids"]:
            step["prompt_ids"].append(line["prompt_id"])
            step["prompt_tokens"] += prompt
            step["prompt_attended_tokens"] += _attended(prompt)
        step["responses"] += 1
        step["response_tokens"] += response
        step["response_attended_tokens"] += _attended(prompt + response) - _attended(prompt)
        step["longest_response"] = max(step["longest_response"], response)
        step["finished_responses"] += int(line["finished"])
    return work


def _attended(tokens: int) -> int:
    """The first attends to itself, the second to two, and so on."""
    return tokens * (tokens + 1) // 2


def _peaks(
    started: Mapping[str, Any] | None,
    steps: Sequence[Mapping[str, Any]],
    peak_bytes: Mapping[str, int],
    samples: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    """The highest value of each kind of memory from any source; a CPU has no device memory to speak of."""
    is_cpu = started is not None and started["device"] == "cpu"
    peaks: dict[str, Any] = {}
    for kind in ("allocated", "reserved", "process", "device", "rss"):
        seen = [peak_bytes[kind]] if kind in peak_bytes else []
        for source in (*(step["memory"] for step in steps), *samples):
            seen += [int(source[n]) for n in (f"peak_{kind}_bytes", f"{kind}_bytes") if n in source]
        missing = NOT_SUPPORTED if is_cpu and kind != "rss" else NOT_MEASURED
        peaks[f"peak_{kind}_bytes"] = max(seen) if seen else missing
    return peaks


def _telemetry(
    samples: Sequence[Mapping[str, Any]], reasons: Sequence[str], own: _Journal
) -> dict[str, Any]:
    """Series that most samples have, of the samples that have all of them: a failed reading is no number."""
    fields = _fields(samples)
    names = {name for name, status in fields.items() if status == "measured"}
    names |= {"monotonic_seconds"}
    kept = _thinned([each for sample in samples if names <= (each := _numbers(sample)).keys()])
    if not kept:
        reasons = ()  # of nothing, nothing can be doubted
    series: dict[str, list[float]] = {
        name: [sample[name] for sample in kept] for name in sorted(names - {"monotonic_seconds"})
    }
    series["at_seconds"] = [own.since(sample["monotonic_seconds"]) for sample in kept]
    status = "invalid" if reasons else "valid" if kept else "not_measured"
    return {"status": status, "reasons": list(reasons), "series": series, "fields": fields}


def _fields(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every reading -> measured where most samples have a number for it, else the status that most have."""
    told: dict[str, Counter[str]] = {}
    for sample in samples:
        for name, value in _without(sample, "monotonic_seconds").items():
            status = value if isinstance(value, str) else "measured"
            told.setdefault(name, Counter())[status] += 1
    return {name: _most(counts, len(samples)) for name, counts in sorted(told.items())}


def _most(counts: Counter[str], num_samples: int) -> str:
    if counts["measured"] > num_samples / 2:
        return "measured"
    others = Counter({status: n for status, n in counts.items() if status != "measured"})
    return others.most_common(1)[0][0] if others else "not_measured"


def _numbers(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if not isinstance(value, str)}


def _thinned(samples: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """At most MAX_SAMPLES: of equal stretches, the sample with the most resident memory."""
    if len(samples) <= MAX_SAMPLES:
        return list(samples)
    edges = [index * len(samples) // MAX_SAMPLES for index in range(MAX_SAMPLES + 1)]
    return [
        max(samples[start:end], key=lambda sample: sample.get("rss_bytes", 0))
        for start, end in pairwise(edges)
    ]


def _finite(metrics: Mapping[str, float]) -> dict[str, Any]:
    """JSON has no NaN, and a run that diverged is a result too."""
    return {name: v if math.isfinite(v) else NOT_FINITE for name, v in metrics.items()}


def _files(run_dir: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each file among `names`, or below a folder among them, with its bytes and sha256."""
    paths = [p for name in names for p in (run_dir / name, *sorted((run_dir / name).rglob("*")))]
    return {
        path.relative_to(run_dir).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in paths
        if path.is_file()
    }


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
