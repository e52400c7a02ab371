"""The user's own Parquet as a workload's data, from the command to the record that is checked."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from miniverl.bench import cli, local, record, suite, validate
from miniverl.bench.exits import Exit
from miniverl.bench.fetch import fetch
from miniverl.bench.pin import LocalPin, find, pin
from miniverl.bench.workload import workload
from miniverl.compiler import upstream
from miniverl.compiler.upstream import quiet
from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import Refused, WrongCall

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the fetched models and trees of the real one, and nothing of anybody's own."""
    folder = tmp_path_factory.mktemp("cache")
    for part in ("models", "upstream", "machines"):
        if (upstream.cache_dir() / part).exists():
            (folder / part).symlink_to(upstream.cache_dir() / part)
    return folder


@pytest.fixture(autouse=True)
def _in_own_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIVERL_CACHE", str(own_cache))


def rows(*answers: int) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "mine",
            "prompt": [{"role": "user", "content": f"What is {answer} + 0?"}],
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
            "extra_info": {"index": index},
        }
        for index, answer in enumerate(answers)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(name: str, *answers: int, **options: Any) -> Path:
        path = tmp_path / "where it is" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows(*answers)), path, **options)
        return path

    return written


def test_a_workload_runs_on_rows_of_ones_own_and_its_record_tells_their_digest_and_no_path(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    data = local.read([f"train={write('my rows.parquet', *range(1, 7))}", "validation=none"])
    request = suite.Request(
        workload="tiny-grpo", gpu="cpu", as_is=True, launches=1, seed=None, out=tmp_path, data=data
    )
    plan = replace(suite.prepare(request, quiet), interruption=None)
    plan = replace(plan, workload=replace(plan.workload, checks_resume=False))
    measured = suite.measure(plan, lambda line: None)

    assert measured.exit is Exit.DONE, measured.sentence
    path = measured.path
    assert cli.main(["check", str(path)]) == 0
    written: dict[str, Any] = record.load_strict(path)
    (stated,) = [each for each in written["inputs"] if each["kind"] == "data"]
    assert stated["source"] == "local"
    assert (stated["pin_state"], stated["digest_of"], stated["rows"]) == ("bound", "content", 6)
    assert stated["pin"] == f"local-{stated['sha256'][:12]}"
    digest = rows_sha256(rows(*range(1, 7)))
    assert written["recipe"]["train_sha256"] == digest
    assert plan.record_class == ("unofficial" if plan.stack.differences else "modified")
    text = path.read_text("utf-8")
    assert "where it is" not in text
    assert "my rows" not in text
    assert str(tmp_path) not in text

    forged = json.loads(text)
    next(each for each in forged["inputs"] if each["kind"] == "data")["sha256"] = "ab" * 32
    codes = {problem.code for problem in validate.validate(record.complete(forged))}
    assert "pin_differs" in codes


def test_equal_rows_have_one_name_whatever_file_they_are_in(write: Callable[..., Path]) -> None:
    one = local.read([f"train={write('a.parquet', 1, 2)}"])
    other = local.read([f"train={write('b.parquet', 1, 2, compression='gzip')}"])
    third = local.read([f"train={write('c.parquet', 2, 1)}"])

    assert one == other != third
    (reference,) = one.values()
    assert reference is not None
    chosen = pin(reference.partition("/")[0])
    assert isinstance(chosen, LocalPin)
    assert chosen.splits["train"].rows == 2


def test_what_is_measured_is_what_was_read_and_a_changed_copy_is_refused(
    write: Callable[..., Path], own_cache: Path
) -> None:
    (reference,) = local.read([f"train={write('d.parquet', 3, 4)}"]).values()
    assert reference is not None
    name = reference.partition("/")[0]
    write("d.parquet", 9)  # the file is somebody else's by now
    assert cli.main(["fetch", "--check", name]) == 0

    shutil.copyfile(write("e.parquet", 5, 6), own_cache / "data" / name / "train.parquet")
    assert cli.main(["fetch", "--check", name]) == Exit.NO
    with pytest.raises(Refused):
        fetch([name], quiet)
    shutil.rmtree(own_cache / "data" / name)
    assert find(name) is None


def test_every_binding_that_binds_nothing_is_told_at_once(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "text.parquet").write_text("no rows")
    with pytest.raises(WrongCall) as caught:
        local.read(
            [
                "trian=x.parquet",
                f"train={tmp_path / 'no.parquet'}",
                f"validation={tmp_path / 'text.parquet'}",
                "reward=last_number",
                "reward=gsm8k",
            ]
        )
    told = [(problem.field, problem.reason.partition(":")[0]) for problem in caught.value.problems]
    assert cli.main(["bench", "tiny-grpo", "--bind", "trian=x.parquet"]) == Exit.WRONG_CALL
    assert told == [
        ("--bind", "it binds nothing"),
        ("train", "no such file"),
        ("validation", "not Parquet"),
        ("reward", "it is bound twice"),
    ]


def test_rows_of_a_pin_are_bound_by_its_name(write: Callable[..., Path]) -> None:
    stated = local.read(["train=sums-and-products/train", "validation=none", "reward=gsm8k"])
    changed = local.bound(workload("tiny-grpo"), stated)
    assert changed.bindings.train == "sums-and-products/train"
    assert changed.bindings.validation is None
    assert changed.bindings.reward == "gsm8k"
    assert changed.sha256 != workload("tiny-grpo").sha256

    same = {"train": "chain-sum/train", "validation": "chain-sum/train"}
    with pytest.raises(WrongCall, match="it is the training split"):
        local.bound(workload("tiny-grpo"), same)
