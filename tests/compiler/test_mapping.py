"""One file, read strictly: typed as upstream types it, and refused with every line that could mean two things."""

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from miniverl.compiler.mapping import LARGEST_BYTES, MOST_PROBLEMS, Document, read
from miniverl.compiler.scalar import plain
from miniverl.engine.problem import Problem, Problems, Refused, WrongCall


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str | bytes, name: str = "config.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return written


def refused(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refusal:
        read(path)
    return refusal.value.problems


def said(problems: tuple[Problem, ...]) -> list[tuple[str, str, str]]:
    return [(problem.field, problem.origin, problem.reason) for problem in problems]


def test_a_mapping_becomes_leaves_with_their_lines_and_a_digest_over_the_bytes(write):
    text = "a:\n  b: 1\n  c: [1, 2]\nd: {}\n"
    assert read(write(text)) == Document(
        name="config.yaml",
        leaves={"a.b": 1, "a.c": [1, 2], "d": {}},
        lines={"": 1, "a": 1, "a.b": 2, "a.c": 3, "d": 4},
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


SCALARS = (
    "1e-6 1.0e-5 1E5 .5 5. -.inf 1_000 010 0o17 0x1F 0b101 1:30 1:30.5 08 on Off yes NO true null ~ nan "
    "2026-01-02 1e 0_1 +3 -0 1.2.3 1__0 0x 0b _1 1_ 1_.5 .e5 1e+5 .5e5 .5e+5"
)


@pytest.mark.parametrize("text", SCALARS.split(" "))
def test_a_scalar_has_the_type_that_omegaconf_gives_it(text):
    assert_equal(plain(text), OmegaConf.create(f"a: {text}").a)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789_.eE+-:xbno", min_size=1, max_size=8))
def test_what_looks_like_a_number_is_read_as_omegaconf_reads_it(text):
    loader = get_yaml_loader()(text)
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    try:
        expected = loader.construct_object(yaml.ScalarNode(tag, text))
    except ValueError:
        with pytest.raises(ValueError, match="invalid literal"):
            plain(text)
    else:
        assert_equal(plain(text), expected)


def assert_equal(value: Any, expected: Any) -> None:
    assert type(value) is type(expected)
    assert value == expected or (math.isnan(value) and math.isnan(expected))


def test_everything_that_is_wrong_is_named_at_once_with_its_line(write):
    text = """\
a: &x [1]
b: *x
a: 2
1: 2
c: ${a}
d: .inf
e: !!python/object:os.system x
? [x]
: 2
<<: {q: 1}
f.g: 1
h: 0x_
"""
    assert said(refused(write(text))) == [
        ("a", "config.yaml:1", "an anchor"),
        ("b", "config.yaml:2", "an alias"),
        ("a", "config.yaml:3", "stated twice, first in line 1"),
        ("config.yaml", "config.yaml:4", "a key that is not text"),
        ("c", "config.yaml:5", "a reference that was left unresolved"),
        ("d", "config.yaml:6", "not a finite number"),
        ("e", "config.yaml:7", "a tag"),
        ("config.yaml", "config.yaml:8", "a key that is not text"),
        ("config.yaml", "config.yaml:10", "a merge of mappings"),
        ("config.yaml", "config.yaml:11", "a key is one name, and levels are nested"),
        ("h", "config.yaml:12", "looks like a number and is none"),
    ]


WRONG = [
    ("a:\n\tb: 1\nc:\n \td: 2\n", [2, 4], "indented by a tab"),
    ("a: 1\n---\nb: 1\n", [1], "2 documents"),
    ("", [1], "not a mapping"),
    ("- 1\n", [1], "not a mapping"),
    ("a: b: c\n", [1], "not YAML: mapping values are not allowed here"),
    (b"a: 1\nb: \xff\n", [2], "not UTF-8"),
    ('a: "\\ud800"\n', [1], "half a character (a lone surrogate)"),
    ("%YAML 1.2\n---\na: 1\n", [2], "a directive changes how a file is read"),
]


@pytest.mark.parametrize(("text", "lines", "reason"), WRONG)
def test_what_is_no_single_plain_mapping_is_refused(write, text, lines, reason):
    problems = refused(write(text))
    assert [problem.origin for problem in problems] == [f"config.yaml:{line}" for line in lines]
    assert {problem.reason for problem in problems} == {reason}


JSON = [
    ('{"a": 1,}', 1, "not JSON: "),  # the rest is Python's, and differs by its version
    ("{'a': 1}", 1, "not JSON: Expecting property name enclosed in double quotes"),
    ('{"a": 1,\n "a": 2}', 2, "stated twice, first in line 1"),
    ('{"a":\n NaN}', 1, "not a finite number"),
    ('{"a": 1e400}', 1, "not a finite number"),
    ('{"a": 010}', 1, "looks like a number and is none"),
    ('{"a": "${b}"}', 1, "a reference that was left unresolved"),
]


@pytest.mark.parametrize(("text", "line", "reason"), JSON)
def test_json_is_held_to_json(write, text, line, reason):
    (problem,) = refused(write(text, "config.json"))
    assert problem.origin.startswith("config.json:")
    assert problem.reason.startswith(reason)
    assert abs(int(problem.origin.partition(":")[2]) - line) <= 1


def test_json_reads_as_json_does(write):
    text = '{\n\t"a": {"b": [1, 1e-6, true, null]},\n\t"c": "\\ud83d\\ude00\\/", "d": "1"\n}'
    leaves = read(write(text, "config.json")).leaves
    assert leaves == {"a.b": [1, 1e-6, True, None], "c": "\U0001f600/", "d": "1"}


def test_a_missing_file_is_a_wrong_call(tmp_path):
    with pytest.raises(WrongCall, match="no such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(WrongCall, match="no such file"):
        read(tmp_path)


def test_a_large_file_is_refused_by_its_size(write):
    path = write("a: 1\n")
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)  # of zeros, which would be refused as no text
    (problem,) = refused(path)
    assert problem.reason == f"{100 * 2**20} bytes, and no config has more than {LARGEST_BYTES}"


BOMBS = {
    "aliases": "a: &a [x, x]\n" + "".join(f"k{n}: &k{n} [*a, *a, *a]\n" for n in range(60)),
    "brackets": "[" * 3000,
    "braces": "{a: " * 3000,
    "values": "a: [" + "1, " * 30_000 + "]\n",
    "duplicates": "a: 1\n" * 3000,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_bomb_does_not_go_off(write, name, suffix):
    assert 0 < len(refused(write(BOMBS[name], f"bomb.{suffix}"))) <= MOST_PROBLEMS


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!#|>'\"%@,?\n\t 01.~<=$\\", max_size=40), st.booleans())
def test_any_text_is_a_document_or_problems(tmp_path_factory, text, is_json):
    path = tmp_path_factory.mktemp("any") / ("any.json" if is_json else "any.yaml")
    path.write_text(text, encoding="utf-8")
    try:
        document = read(path)
    except Problems as raised:
        problems = raised.problems
    else:
        problems = ()
        assert set(document.leaves) <= set(document.lines)
    assert all(one.origin and one.reason and one.fix for one in problems)
