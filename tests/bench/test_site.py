"""The page and the tables: nothing from outside, the same bytes again, every number with its unit."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from miniverl.bench import page, record, units
from miniverl.bench.plot import Axes, Series, lines, nice_ticks, stacked_bars, waterfall
from miniverl.bench.show import record_view
from miniverl.bench.site import write_site
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused

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
def html(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_site(paths, tmp_path_factory.mktemp("site")).read_text("utf-8")


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


def test_the_page_names_no_address_outside_itself(html: str) -> None:
    assert "//" not in html.replace("</", "").split("<script>")[0]
    checker = Checker()
    checker.feed(html)
    links = [value for _, name, value in checker.attributes if name in ("href", "src")]
    assert links
    assert all(value.startswith(("#r", "data:application/json;base64,")) for value in links)
    assert "xmlns" not in html


def test_the_policy_lets_in_only_this_style_and_this_script(html: str) -> None:
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    checker = Checker()
    checker.feed(html)
    assert not [name for _, name, _ in checker.attributes if name == "style" or name[:2] == "on"]


def test_every_element_is_closed_and_every_id_is_unique(html: str) -> None:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    ids = [value for _, name, value in checker.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_every_plot_has_a_title_and_a_sentence(html: str) -> None:
    plots = re.findall(r"<svg.*?</svg>", html)
    assert len(plots) == 4 + 4 + 2
    for plot in plots:
        root = ElementTree.fromstring(plot)
        assert root.get("role") == "img"
        title, desc = root[0], root[1]
        assert (title.tag, desc.tag) == ("title", "desc")
        assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert title.text
        assert desc.text


def test_equal_records_give_equal_bytes_in_any_order(paths: list[Path], tmp_path: Path) -> None:
    first = write_site(paths, tmp_path / "one").read_bytes()
    assert write_site(list(reversed(paths)), tmp_path / "two").read_bytes() == first


def test_the_record_can_be_downloaded_from_the_page(html: str, paths: list[Path]) -> None:
    found = [
        json.loads(base64.b64decode(each))
        for each in re.findall(r"data:application/json;base64,([A-Za-z0-9+/=]*)", html)
    ]
    assert len(found) == len(paths)
    for path in paths:
        assert json.loads(path.read_text("utf-8")) in found


def test_text_from_a_record_is_escaped(example: ModuleType, tmp_path: Path) -> None:
    made = example.measured(tmp_path / "run")
    made["findings"][0]["message"] = "<script>alert(1)</script>"
    made["hardware"]["cpu_model"] = 'A "quoted" <b>CPU</b>'
    resealed = record.complete({**made, "comparability": {}})
    write_json(tmp_path / "record.json", resealed)
    text = write_site([tmp_path / "record.json"], tmp_path).read_text("utf-8")
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


def test_a_page_without_records_is_a_page(tmp_path: Path) -> None:
    assert "Measurement records" in write_site([], tmp_path).read_text("utf-8")


def test_numbers_on_the_page_have_units(html: str) -> None:
    for number in ("12.2 s", "80 /s", "1.50 GiB", "58 MB", "13.47 /s", "27.6 MB"):
        assert f">{number}<" in html


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
