"""A folder of pages that needs no network: leaderboards, a page for each record, a page for each comparison.

Files of our own making: no script is needed to read them, nothing is loaded, and equal records give equal bytes.
A single record is its own index.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from miniverl.bench import comparison_page, record_page, show, units
from miniverl.bench.comparability import comparability
from miniverl.bench.compare import Comparison, compare_sides
from miniverl.bench.launch_values import is_number
from miniverl.bench.page import document, links, table
from miniverl.bench.record_page import peak, word
from miniverl.bench.results import (
    digest_of,
    environment_id,
    gpu_of,
    num_launches,
    read_index,
    workload_of,
)
from miniverl.bench.validate import load
from miniverl.bench.version1 import version1
from miniverl.compiler.whole import json_text, write_text

Json = Mapping[str, Any]

MADE = "pages.json"  # digests of the files that the site is made of
LATEST = "latest.json"  # beside a workload's record folders: a copy of the last one
_FOOTER = "These pages load nothing, and work without scripts."
_HOME = "../index.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Two environments that measured the same work, the earlier one as the baseline."""

    name: str
    a: Sequence[Json]
    b: Sequence[Json]
    comparison: Comparison


def latest_records(out: Path) -> list[Path]:
    """The last record of each workload and GPU below `out`."""
    return sorted((out / "bench").glob(f"*/*/{LATEST}"))


def published_records(results: Path) -> list[Path]:
    """Every record that the index of a folder of results lists."""
    return [results / path for path in sorted(read_index(results))]


def reviews(results: Path) -> dict[str, str]:
    """The review state of each published record, by its digest."""
    return {entry.record_sha256: entry.review for entry in read_index(results).values()}


def write_site(
    records: Sequence[Path], out: Path, reviewed: Mapping[str, str] | None = None
) -> Path:
    """Write the pages of the records below `out`; returns the path of its index.html.

    Pages of the last site there that do not belong any more are removed, and nothing else is. `reviewed`:
    digest -> review state. Raises Refused or WrongCall for a record that is not valid.
    """
    loaded = {digest_of(record): record for record in map(load, records)}
    ordered = sorted(loaded.values(), key=lambda r: (r["measured_at"], digest_of(r)), reverse=True)
    states, compared = reviewed or {}, comparisons(ordered)
    written = pages(ordered, compared, states)
    made = {path: _sha256(text.encode("utf-8")) for path, text in written.items()}
    earlier = {path: digest for path, digest in _made(out).items() if path not in made}
    write_text(out / MADE, json_text({**earlier, **made}))  # first: what breaks off is found again
    for path, text in written.items():
        write_text(out / path, text)
    for path, digest in earlier.items():
        _remove(out, path, digest)
    write_text(out / MADE, json_text(made))
    return out / "index.html"


def _made(out: Path) -> dict[str, str]:
    """The digest of each file that the last site here had."""
    if not (out / MADE).exists():
        return {}
    made: dict[str, str] = json.loads((out / MADE).read_text("utf-8"))
    return made


def _remove(out: Path, path: str, digest: str) -> None:
    """A page of an earlier site; one that was edited since, or that lies elsewhere, is somebody's own."""
    page = out / path
    is_ours = page.is_file() and page.resolve().is_relative_to(out.resolve())
    if is_ours and _sha256(page.read_bytes()) == digest:
        page.unlink()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pages(
    records: Sequence[Json], compared: Sequence[Compared], states: Mapping[str, str]
) -> dict[str, str]:
    """Every file of the site, by its path; records in the order given."""
    written = {"index.html": _index(records, compared, states)}
    for record in records:
        name, state = page_name(record), states.get(digest_of(record))
        written[f"records/{name}.json"] = json_text(record)
        shown = record_page.section(record, "r1", address=f"{name}.json", review=state)
        title = f"{show.name(record)} on {_device(record)}"
        nav = links([("All records", _HOME), *_ways(record, compared)])
        written[f"records/{name}.html"] = _page(title, shown, nav)
    for each in compared:
        shown = comparison_page.section(each.comparison, each.a, each.b, "c1")
        named = [(f"record of {side}", f"../records/{page_name(group[0])}.html")
                 for side, group in (("A", each.a), ("B", each.b))]  # fmt: skip
        nav = links([("All records", _HOME), *named])
        written[f"compare/{each.name}.html"] = _page(
            f"{each.comparison.workload}: {each.comparison.verdict.replace('_', ' ')}", shown, nav
        )
    return written


def comparisons(records: Sequence[Json]) -> list[Compared]:
    """Of measured records of the same work, the first environment against each later one."""
    groups: dict[str, dict[str, list[Json]]] = {}
    for record in sorted(records, key=lambda each: each["measured_at"]):
        if record["status"] == "measured":
            key = comparability(record)["key_sha256"]
            groups.setdefault(key, {}).setdefault(environment_id(record), []).append(record)
    return [
        Compared(
            name=f"{workload_of(sides[first][0])}-{first}-{other}",
            a=sides[first],
            b=sides[other],
            comparison=compare_sides(sides[first], sides[other]),
        )
        for sides in groups.values()
        for first, *others in [list(sides)]
        for other in others
    ]


def page_name(record: Json) -> str:
    return f"{gpu_of(record)}-{workload_of(record)}-{digest_of(record)[:8]}"


def _index(records: Sequence[Json], compared: Sequence[Compared], states: Mapping[str, str]) -> str:
    if len(records) == 1:
        [record] = records
        address, state = f"records/{page_name(record)}.json", states.get(digest_of(record))
        shown = record_page.section(record, "r1", address=address, review=state)
        return _page("Measurement record", shown, "")
    workloads = dict.fromkeys(workload_of(record) for record in records)
    boards = [
        _board(name, [each for each in records if workload_of(each) == name], states)
        for name in sorted(workloads)
    ]
    return _page("Measurement records", "".join(boards) + _compared(compared), "")


def _page(title: str, main: str, nav: str) -> str:
    header = (
        f"<h1>{escape(title)}</h1>"
        '<p class="soft">Reinforcement learning of a language model on one device, measured by miniVERL.'
        " Every number below is in a record, and <code>miniverl check</code> recomputes it.</p>"
    )
    return document(f"{title} - miniVERL", header, main, _FOOTER, nav)


def _board(name: str, records: Sequence[Json], states: Mapping[str, str]) -> str:
    """The records of one workload, the most rollout tokens a second first; what was not measured stands last."""
    columns = (
        "", "device", "rollout", "steady step", "first update", "peak memory", "launches", "driver",
        "CUDA", "torch", "status", "resume", "class", "review", "environment", "measured at",
    )  # fmt: skip
    ranked = sorted(records, key=lambda record: (-_rank(record), record["measured_at"]))
    rows = [_row(record, place, states) for place, record in enumerate(ranked, start=1)]
    numeric = frozenset({0, 2, 3, 4, 5, 6})
    title = next((r["workload"].get("title") for r in records if "workload" in r), None)
    return (
        f'<section id="{escape(name, quote=True)}"><h2>{escape(name)}</h2>'
        f"{f'<p>{escape(title)}</p>' if title else ''}"
        f"{table(columns, rows, numeric=numeric, sortable=True, caption=_count(rows))}</section>"
    )


def _count(rows: Sequence[object]) -> str:
    return "1 record" if len(rows) == 1 else f"{len(rows)} records"


def _rank(record: Json) -> float:
    rate = record["measurements"]["steady_state_median_throughput"].get("rollout_tokens_per_second")
    return float(rate) if record["status"] == "measured" and is_number(rate) else 0.0


def _row(record: Json, place: int, states: Mapping[str, str]) -> list[tuple[str, object] | str]:
    measured, hardware = record["measurements"], record["hardware"]
    step = measured["steady_state_median_seconds"].get("step")
    rate = measured["steady_state_median_throughput"].get("rollout_tokens_per_second")
    first, memory = measured["time_to_first_update_seconds"], peak(record)[1]
    original = version1(record)
    torch = record["environment"]["packages"].get("torch") if original is None else (
        original["hardware"]["torch"]
    )  # fmt: skip
    told_class = record.get("class", "version 1")
    return [
        (str(place) if _rank(record) else "\N{EN DASH}", place),
        (_link(record), _device(record)),
        (escape(units.per_second(rate)), _sort_value(rate)),
        (escape(units.seconds(step)), _sort_value(step)),
        (escape(units.seconds(first)), _sort_value(first)),
        (escape(units.gib(memory)), _sort_value(memory)),
        (str(num_launches(record)), num_launches(record)),
        hardware["driver"] or "-",
        hardware["cuda_runtime"] or "-",
        torch or "-",
        (word(record["status"]), record["status"]),
        (word(record["resume"]["status"]), record["resume"]["status"]),
        (word(told_class), told_class),
        states.get(digest_of(record), "-").replace("_", " "),
        (f"<code>{environment_id(record)}</code>", environment_id(record)),
        (record["measured_at"].partition("T")[0], record["measured_at"]),
    ]


def _compared(compared: Sequence[Compared]) -> str:
    if not compared:
        return ""
    rows = [
        (
            (
                f'<a href="compare/{each.name}.html">{escape(each.comparison.workload)}</a>',
                each.comparison.workload,
            ),
            (word(each.comparison.verdict), each.comparison.verdict),
            f"{_device(each.a[0])}, {each.name.rsplit('-', 2)[1]}",
            each.name.rsplit("-", 1)[1],
            ", ".join(d.field for d in each.comparison.treatment_differences) or "-",
        )
        for each in compared
    ]
    columns = ("comparison", "verdict", "A", "B", "what differs")
    return f'<section id="comparisons"><h2>Comparisons</h2>{table(columns, rows)}</section>'


def _ways(record: Json, compared: Sequence[Compared]) -> list[tuple[str, str]]:
    """To the comparisons that the record is part of."""
    digest = digest_of(record)
    return [
        (f"compared: {each.comparison.verdict.replace('_', ' ')}", f"../compare/{each.name}.html")
        for each in compared
        if digest in {digest_of(one) for one in (*each.a, *each.b)}
    ]


def _link(record: Json) -> str:
    return f'<a href="records/{page_name(record)}.html">{escape(_device(record))}</a>'


def _device(record: Json) -> str:
    hardware = record["hardware"]
    device: str = hardware["gpu"] or hardware["cpu_model"]
    return device


def _sort_value(value: Any) -> str:
    return str(value) if is_number(value) else ""
