"""What a person sees of a fetch where stderr is no terminal: few lines, each once."""

import pytest

from miniverl.bench.progress import bars


def test_a_file_is_told_when_it_begins_and_when_it_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bars() as progress:
        for done in (0, 1_000_000, 1_500_000, 2_000_000, 2_000_000):
            progress("weights.whl", done, 2_000_000)
    captured = capsys.readouterr()
    assert captured.err == "weights.whl: 2.0 MB ...\nweights.whl: done\n"
    assert captured.out == ""


def test_a_file_that_was_there_already_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as progress:
        progress("weights.whl", 2_000_000, 2_000_000)
    assert capsys.readouterr().err == "weights.whl: verified\n"
