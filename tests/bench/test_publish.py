"""Publication: the right place, once, whole, and nothing that should not be seen."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from miniverl.bench import privacy, publish
from miniverl.bench.cli import main
from miniverl.bench.record import complete, seal
from miniverl.bench.results import environment_id, published_paths, read_index
from miniverl.compiler.whole import write_json
from miniverl.engine.problem import Refused

PUBLISHED = Path(__file__).parents[1] / "data" / "published_record_rtx4080.json"
Record = dict[str, Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def written(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return dict(example.measured(tmp_path_factory.mktemp("measured")))


@pytest.fixture
def path(written: Record, tmp_path: Path) -> Path:
    write_json(tmp_path / "record.json", written)
    return tmp_path / "record.json"


def put(path: Path, results: Path, **options: Any) -> publish.Published:
    [done] = publish.publish([path], results, **{"review": None, "as_is": False, **options})
    return done


def changed(path: Path, written: Record, **fields: Any) -> Path:
    """A valid record that differs in these fields."""
    other = path.with_name("other.json")
    write_json(other, complete({**written, **fields}))
    return other


def test_a_record_stands_under_gpu_workload_and_environment(
    path: Path, written: Record, tmp_path: Path
) -> None:
    done = put(path, tmp_path / "results")
    environment = environment_id(written)
    name = f"20260901T120000Z-{written['record_sha256'][:8]}.json"
    assert done.path == tmp_path.joinpath(
        "results", "records", "cpu", "smollm2-grpo", environment, name
    )
    assert done.path.read_bytes() == path.read_bytes()
    assert published_paths(tmp_path / "results", environment) == [done.path]


def test_a_record_of_a_card_stands_under_its_name(tmp_path: Path) -> None:
    done = put(PUBLISHED, tmp_path, review="reference")
    assert done.path.parts[-4:-2] == (
        "nvidia-geforce-rtx-4080",
        "single_gpu_verl_pg_k1_systems_workload",
    )
    assert done.path.read_bytes() == PUBLISHED.read_bytes()


def test_twice_is_once(path: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert put(path, results).is_new
    before = {each: each.read_bytes() for each in results.rglob("*") if each.is_file()}
    assert not put(path, results).is_new
    assert {each: each.read_bytes() for each in results.rglob("*") if each.is_file()} == before


def test_a_review_state_changes_only_when_it_is_stated(path: Path, tmp_path: Path) -> None:
    def review() -> str:
        [entry] = read_index(tmp_path / "results").values()
        return entry.review

    put(path, tmp_path / "results")
    assert review() == "community_submitted"
    put(path, tmp_path / "results", review="maintainer_measured")
    put(path, tmp_path / "results")
    assert review() == "maintainer_measured"


def test_a_publication_that_broke_off_is_completed(path: Path, tmp_path: Path) -> None:
    done = put(path, tmp_path / "results")
    (tmp_path / "results" / "index.json").unlink()  # the record is written first
    assert [each.value for each in publish.check(tmp_path / "results")] == ["not listed"]
    assert put(path, tmp_path / "results").is_new
    assert publish.check(tmp_path / "results") == []
    done.path.unlink()
    assert [each.value for each in publish.check(tmp_path / "results")] == ["listed"]
    put(path, tmp_path / "results")
    assert publish.check(tmp_path / "results") == []


def test_a_dirty_tree_and_an_unofficial_record_must_be_stated(
    path: Path, written: Record, tmp_path: Path
) -> None:
    other = changed(path, written, source_dirty=True, **{"class": "unofficial"})
    with pytest.raises(Refused) as refused:
        put(other, tmp_path / "results")
    assert [each.field for each in refused.value.problems] == ["/source_dirty", "/class"]
    assert not (tmp_path / "results").exists()
    [entry] = [put(other, tmp_path / "results", as_is=True).entry]
    assert (entry.source_dirty, entry.record_class) == (True, "unofficial")


def test_a_name_of_this_machine_is_refused(
    path: Path, written: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "lovelace")
    finding = {"code": "note", "severity": "info", "message": "Measured by Lovelace"}
    other = changed(path, written, findings=[finding])
    with pytest.raises(Refused) as refused:
        put(other, tmp_path / "results")
    assert [each.field for each in refused.value.problems] == ["/findings/0/message"]


def test_names_that_are_everybodys_are_no_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.setenv(variable, "root")
    assert "root" not in privacy.own_names()


def test_of_several_records_all_are_published_or_none(
    path: Path, written: Record, tmp_path: Path
) -> None:
    forged = path.with_name("forged.json")
    write_json(forged, seal({**written, "reason": "edited"}))
    with pytest.raises(Refused):
        publish.publish([path, forged], tmp_path / "results", review=None, as_is=False)
    assert not (tmp_path / "results").exists()


def test_the_environment_is_the_device_and_what_is_compared(written: Record) -> None:
    def with_hardware(**fields: Any) -> Record:
        return complete({**written, "hardware": {**written["hardware"], **fields}})

    same = complete({**written, "measured_at": "2026-10-01T12:00:00Z", "class": "modified"})
    assert environment_id(same) == environment_id(written)
    assert environment_id(with_hardware(driver="596.49")) != environment_id(written)
    assert environment_id(with_hardware(cpu_model="Another CPU")) != environment_id(written)
    assert len(environment_id(written)) == 12


def test_a_changed_record_is_found_where_it_stands(path: Path, tmp_path: Path) -> None:
    done = put(path, tmp_path / "results")
    plain = json.loads(done.path.read_text("utf-8"))
    plain["measurements"]["cold_startup_seconds"] = 1.0
    write_json(done.path, plain)
    fields = [each.field for each in publish.check(tmp_path / "results")]
    assert "/measurements/cold_startup_seconds" in fields


def test_an_index_of_something_else_is_left_alone(path: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "index.json").write_text('{"mine": 1}')
    with pytest.raises(Refused, match="no index of records"):
        put(path, tmp_path / "results")
    assert (tmp_path / "results" / "index.json").read_text() == '{"mine": 1}'


def test_the_command_publishes_checks_and_asks_for_one_of_both(
    path: Path, tmp_path: Path, capsys: Capture
) -> None:
    results = ["--results", str(tmp_path / "results")]
    assert main(["publish", *results]) == 2
    assert main(["publish", str(path), "--check", *results]) == 2
    capsys.readouterr()
    assert main(["publish", str(path), *results, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["records"]
    assert (row["is_new"], row["review"]) == (True, "community_submitted")
    assert main(["publish", "--check", *results]) == 0
