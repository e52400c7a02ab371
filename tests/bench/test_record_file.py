"""A record's file is strict JSON of a bounded size, whatever it says."""

from pathlib import Path

import pytest

from miniverl.bench import record as records
from miniverl.engine.problem import Refused, WrongCall


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"kind": 1, "kind": 2}', "twice the same key: kind"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "-Infinity is no number"),
        ('{"a": 1e999}', "inf"),
        ('{"a": 9007199254740993}', "9007199254740993"),
        ('{"a": 1', "is not JSON"),
        ("[1]", "holds no object"),
    ],
)
def test_what_is_not_strict_json_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        records.load_strict(path)
    assert why in refused.value.problems[0].reason


def test_a_file_that_never_ends_is_refused() -> None:
    with pytest.raises(Refused, match="larger than 64 MiB"):
        records.load_strict(Path("/dev/zero"))


def test_a_missing_file_is_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="No such file"):
        records.load_strict(tmp_path / "none.json")
