"""The pages and the tables: nothing from outside, the same bytes again, every number with its unit."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from miniverl.bench import page, record, units
from miniverl.bench.plot import (
    Axes,
    Ratio,
    Series,
    forest,
    lines,
    nice_ticks,
    stacked_bars,
    waterfall,
)
from miniverl.bench.show import record_view
from miniverl.bench.site import write_site
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused

pytestmark = pytest.mark.slow

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"
AXES = Axes(key="k", title="Title", summary="Summary", x="step", y="seconds")


@pytest.fixture(scope="module")
def paths(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("records")
    made = {
        "measured": example.measured(folder / "a"),
        "failed": example.failed(folder / "b"),
        "blocked": example.blocked(folder / "c"),
    }
    for name, each in made.items():
        write_json(folder / f"{name}.json", each)
    return [*(folder / f"{name}.json" for name in made), PUBLISHED]


@pytest.fixture(scope="module")
def folder(
    paths: list[Path], example: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The site of four records, and of one on another kernel that compares with the first."""
    made = tmp_path_factory.mktemp("other")
    other = record.load_strict(paths[0])
    changed = {"measured_at": "2026-09-02T12:00:00Z"}
    changed["environment"] = {**other["environment"], "kernel": "6.2.0"}
    write_json(made / "other.json", record.complete({**other, **changed}))
    site = tmp_path_factory.mktemp("site")
    reviewed = {other["record_sha256"]: "maintainer_measured"}
    return write_site([*paths, made / "other.json"], site, reviewed).parent


@pytest.fixture(scope="module")
def html(folder: Path) -> dict[str, str]:
    """Every page by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.html"))
    }


class Checker(HTMLParser):
    """Collects attributes, and finds elements that are not closed in order."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})
    EMPTY_SVG = frozenset({"line", "polyline", "polygon"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_no_page_names_an_address_outside_the_folder(html: dict[str, str], folder: Path) -> None:
    assert len(html) == 1 + 5 + 1
    for name, text in html.items():
        assert "//" not in text.replace("</", "").split("<script>")[0]
        assert "xmlns" not in text
        checker = Checker()
        checker.feed(text)
        links = [
            value for _, attribute, value in checker.attributes if attribute in ("href", "src")
        ]
        assert len(links) > 1
        for link in links:
            if link.startswith("#"):
                assert f'id="{link[1:]}"' in text
            else:
                assert (folder / name).parent.joinpath(link).resolve().is_relative_to(folder)
                assert (folder / name).parent.joinpath(link).is_file()


def test_the_policy_lets_in_only_this_style_and_this_script(html: dict[str, str]) -> None:
    for text in html.values():
        [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        checker = Checker()
        checker.feed(text)
        names = [name for _, name, _ in checker.attributes]
        assert not [name for name in names if name == "style" or name[:2] == "on"]


def test_every_element_is_closed_and_every_id_is_unique(html: dict[str, str]) -> None:
    for text in html.values():
        checker = Checker()
        checker.feed(text)
        assert checker.open == []
        ids = [value for _, name, value in checker.attributes if name == "id"]
        assert len(ids) == len(set(ids))


def test_a_keyboard_reaches_the_content_and_every_wide_table(html: dict[str, str]) -> None:
    for text in html.values():
        assert '<a class="skip" href="#main">' in text
        assert text.count('<div class="scroll" tabindex="0" role="region"') == text.count("<table")
        assert text.count("<th>") == 0  # every heading says what it is the heading of


def test_every_plot_has_a_title_and_a_sentence(html: dict[str, str]) -> None:
    plots = [each for text in html.values() for each in re.findall(r"<svg.*?</svg>", text)]
    assert len(plots) == 4 + 4 + 4 + 2 + 1
    for plot in plots:
        root = ElementTree.fromstring(plot)
        assert root.get("role") == "img"
        title, desc = root[0], root[1]
        assert (title.tag, desc.tag) == ("title", "desc")
        assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert title.text
        assert desc.text


def test_equal_records_give_equal_bytes_in_any_order(paths: list[Path], tmp_path: Path) -> None:
    def content(folder: Path) -> dict[Path, bytes]:
        return {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    write_site(paths, tmp_path / "one")
    write_site([*reversed(paths), paths[0]], tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_records_stand_beside_their_pages(folder: Path, paths: list[Path]) -> None:
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("records/*.json")]
    assert len(found) == len(paths) + 1
    for path in paths:
        assert json.loads(path.read_text("utf-8")) in found


def test_the_index_ranks_each_workload_and_leads_to_records_and_comparisons(
    html: dict[str, str],
) -> None:
    index = html["index.html"]
    assert re.findall(r'<section id="([^"]*)">', index) == [
        "single_gpu_verl_pg_k1_systems_workload",
        "smollm2-grpo",
        "comparisons",
    ]
    assert "maintainer measured" in index
    for name in html:
        assert name == "index.html" or f'href="{name}"' in index


def test_a_page_of_a_record_says_how_to_repeat_it_and_what_holds(
    html: dict[str, str], paths: list[Path]
) -> None:
    digest = record.load_strict(paths[0])["record_sha256"][:8]
    [page_of_it] = [text for name, text in html.items() if digest in name]
    assert "git checkout " + "4" * 40 in page_of_it
    assert "miniverl bench smollm2-grpo --gpu cpu --launches 1 --seed 1" in page_of_it
    for heading in ("Repeat it", "Resume", "Determinism", "Findings"):
        assert f"<h3>{heading}</h3>" in page_of_it
    for folded in ("Raw samples", "Files of both runs", "Machine and software", "Inputs"):
        assert f"<summary>{folded}</summary>" in page_of_it
    assert "Launch 3, resumed" in page_of_it


def test_a_page_of_a_comparison_shows_what_differs_before_the_ratios(html: dict[str, str]) -> None:
    [text] = [text for name, text in html.items() if name.startswith("compare/")]
    assert text.index("What differs") < text.index("<svg")
    assert "<td>kernel</td><td>6.1.0-20-amd64</td><td>6.2.0</td>" in text
    assert "descriptive" in text


def test_a_single_record_is_its_own_index(paths: list[Path], tmp_path: Path) -> None:
    text = write_site([paths[0]], tmp_path).read_text("utf-8")
    assert "Where a step's time goes" in text.replace("&#x27;", "'")
    assert (tmp_path / "records").is_dir()


CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: pages are not drawn")
@pytest.mark.parametrize(
    ("kind", "width"),
    [("index.html", 390), ("records/cpu-", 390), ("compare/", 390), ("compare/", 1280)],
)
def test_a_browser_draws_a_page_without_a_complaint_and_within_its_width(
    html: dict[str, str], tmp_path: Path, kind: str, width: int
) -> None:
    """Inside a frame of that width, since a window of a browser has a least one."""
    page_of_it = next(text for name, text in html.items() if name.startswith(kind))
    probe = (
        "<script>var f = document.querySelector('iframe'); f.onload = function () {"
        "var d = f.contentDocument.documentElement;"
        "document.title = d.scrollWidth + ' ' + f.clientWidth; };</script>"
    )
    # The page's own policy stays; the frame gets it as text, so that it may be looked at.
    source = page_of_it.replace("&", "&amp;").replace('"', "&quot;")
    (tmp_path / "frame.html").write_text(
        f'<iframe width="{width}" height="800" style="border:0" srcdoc="{source}"></iframe>{probe}',
        "utf-8",
    )
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
         (tmp_path / "frame.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    found = re.search(r"<title>(\d+) (\d+)</title>", done.stdout)
    assert found, done.stdout[:400]
    assert int(found[1]) <= int(found[2]) == width


def test_text_from_a_record_is_escaped(example: ModuleType, tmp_path: Path) -> None:
    made = example.measured(tmp_path / "run")
    made["findings"][0]["message"] = "<script>alert(1)</script>"
    made["hardware"]["cpu_model"] = 'A "quoted" <b>CPU</b>'
    resealed = record.complete({**made, "comparability": {}})
    write_json(tmp_path / "record.json", resealed)
    text = write_site([tmp_path / "record.json"], tmp_path / "site").read_text("utf-8")
    assert "alert(1)</script>" not in text
    assert "<b>CPU" not in text
    assert "&lt;script&gt;" in text


def test_an_invalid_record_is_not_shown(paths: list[Path], tmp_path: Path) -> None:
    edited = json.loads(paths[0].read_text("utf-8"))
    edited["measurements"]["cold_startup_seconds"] = 1.0
    write_json(tmp_path / "edited.json", edited)
    with pytest.raises(Refused):
        write_site([tmp_path / "edited.json"], tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_pages_that_do_not_belong_any_more_are_removed_and_nothing_else_is(
    paths: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "site"
    write_site(paths, out)
    before = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    edited = max((out / "records").glob("*.html"))  # of the card, which goes
    edited.write_text("my notes\n")
    (out / "records" / "notes.html").write_text("my own page\n")
    (out / "CNAME").write_text("measured.example\n")
    write_site(paths[:1], out)

    after = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    alone = write_site(paths[:1], tmp_path / "alone").parent
    belong = {path.relative_to(alone).as_posix() for path in alone.rglob("*") if path.is_file()}
    assert len(before) > len(belong)
    own = {"CNAME", "records/notes.html", edited.relative_to(out).as_posix()}
    assert after == belong | own
    assert edited.read_text() == "my notes\n"
    assert (out / "index.html").read_bytes() == (alone / "index.html").read_bytes()


def test_a_page_without_records_is_a_page(tmp_path: Path) -> None:
    assert "Measurement records" in write_site([], tmp_path).read_text("utf-8")


def test_numbers_on_the_pages_have_units(html: dict[str, str]) -> None:
    for number in ("12.2 s", "80 /s", "1.50 GiB", "58 MB", "13.47 /s", "27.6 MB"):
        assert f">{number}<" in "".join(html.values())


def test_the_script_is_small() -> None:
    assert len(page.SCRIPT) < 2000


def test_a_stack_is_as_high_as_its_parts() -> None:
    stacks: list[tuple[str, dict[str, float]]] = [("1", {"a": 3.0, "b": 2.0}), ("2", {"a": 10.0})]
    svg = stacked_bars(AXES, stacks, {"a": 0, "b": 1}, [True, False])
    bars = [
        each for each in ElementTree.fromstring(svg).iter("rect") if each.find("title") is not None
    ]
    heights = [float(str(each.get("height"))) for each in bars]
    assert heights[0] / heights[1] == pytest.approx(1.5, abs=0.01)
    assert heights[2] == pytest.approx(2 * (heights[0] + heights[1]), abs=0.02)
    assert [each.get("class") for each in bars] == ["s0 pale", "s1 pale", "s0"]
    assert bars[0].findtext("title") == "step 1, a: 3 seconds"


def test_a_waterfall_has_no_gaps() -> None:
    svg = waterfall(AXES, [("one", 1.0), ("two", 3.0)])
    one, two = ElementTree.fromstring(svg).iter("rect")
    end = float(str(one.get("x"))) + float(str(one.get("width")))
    assert end == pytest.approx(float(str(two.get("x"))), abs=0.02)


def test_a_forest_plot_places_ratios_by_their_logarithm_and_draws_intervals() -> None:
    def row(ratio: float, interval: tuple[float, float] | None) -> Ratio:
        return Ratio(
            name="step", ratio=ratio, interval=interval, margin=0.03, tone="bad", told="told"
        )

    svg = forest(AXES, [row(2.0, (1.5, 3.0)), row(0.5, (1 / 3, 2 / 3)), row(1.0, None)])
    root = ElementTree.fromstring(svg)
    marks = [each for each in root.iter("rect") if each.get("class") == "v-bad"]
    one, other = (float(str(mark.get("x"))) + 4 for mark in marks)
    [hollow] = root.iter("circle")
    assert one + other == pytest.approx(2 * float(str(hollow.get("cx"))), abs=0.05)
    assert svg.count('class="whisker v-bad"') == 2
    assert "+100 %" in svg
    assert "\N{MINUS SIGN}50 %" in svg


def test_a_single_point_is_drawn() -> None:
    svg = lines(AXES, [Series(name="a", colour=0, values=[(1.0, 0.5)])], ("limit", 2.0))
    assert svg.count("<circle") == 1
    assert "nan" not in svg


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 19, [0, 5, 10, 15, 20]),
        (0, 0.43, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (-3, 7, [-4, -2, 0, 2, 4, 6, 8]),
        (5, 5, [5, 6]),
        (0, 0, [0, 0.2]),
    ],
)
def test_ticks_are_round_and_enclose(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("steady_state_median_seconds.step", 12.211, "12.2 s"),
        ("cold_startup_seconds", 0.0123, "12.3 ms"),
        ("cold_startup_seconds", 125.0, "2 min 5 s"),
        ("rollout_tokens_per_second", 13.4693, "13.47 /s"),
        ("peak_rss_gib", 1.5, "1.50 GiB"),
        ("adapter_bytes", 9198518, "9.2 MB"),
        ("peak_allocated_gib", {"status": "not_supported"}, "not supported"),
        ("learning_rate", 0.0005, "0.0005"),
        ("parameters", 134515008, "1.345e+08"),
        ("tokens", 123456.0, "123456"),
    ],
)
def test_a_number_is_written_with_the_unit_of_its_name(name: str, value: Any, text: str) -> None:
    assert units.by_name(name, value) == text


def test_the_terminal_shows_every_kind_of_record(paths: list[Path]) -> None:
    console = Console(width=100)
    with console.capture() as captured:
        for path in paths:
            console.print(record_view(record.load_strict(path)))
    text = captured.get()
    assert "exact match" in text
    assert "The process ran out of memory" in text
    assert "NVIDIA GeForce RTX 4080, driver 596.49, CUDA 13.0" in text
    assert "rollout tokens" in text
