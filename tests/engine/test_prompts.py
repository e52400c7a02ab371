"""From Parquet to prompts: the length rule, row numbers, and every problem at once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jinja2 import TemplateError

from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import WrongCall
from miniverl.engine.prompts import training_prompts, validation_prompts
from miniverl.engine.recipe import Data
from miniverl.engine.rows import read_rows


class LetterTokenizer:
    """One token a letter; a template with a start (1) and a generation prompt (2)."""

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **arguments: Any,
    ) -> list[int]:
        assert tokenize
        assert not return_dict
        if conversation[0]["role"] == "assistant":
            raise TemplateError("a conversation starts with the user")
        text = "".join(message["content"] for message in conversation)
        text += "!" * arguments.get("shouts", 0)
        return [1, *map(ord, text), *([2] if add_generation_prompt else [])]


def row(content: str, **changed: object) -> dict[str, object]:
    plain = {
        "data_source": "here",
        "prompt": [{"role": "user", "content": content}],
        "ability": "letters",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": 3},
    }
    return plain | changed


def written(tmp_path: Path, rows: list[dict[str, object]]) -> Path:
    path = tmp_path / "rows.parquet"
    schema = None if rows else pa.schema([("data_source", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def recipe_data(path: Path, **changed: object) -> Data:
    digest = rows_sha256(read_rows(path))
    data = Data(
        train_sha256=digest,
        validation_sha256=digest,
        prompt_field="prompt",
        max_prompt_tokens=5,
        drops_overlong=True,
        chat_template_arguments={},
        max_rows=None,
        shuffles=False,
        first_permutation=1,
        prompts_per_step=1,
        prompts_per_draw=1,
    )
    return replace(data, **changed)


def load(path: Path, **changed: object):
    return training_prompts(path, recipe_data(path, **changed), 0, LetterTokenizer())


def problems(path: Path, **changed: object) -> list[str]:
    with pytest.raises(WrongCall) as raised:
        load(path, **changed)
    return [f"{problem.field}: {problem.reason}" for problem in raised.value.problems]


def test_a_row_becomes_a_prompt(tmp_path):
    (prompt,) = load(written(tmp_path, [row("ab")]))
    assert prompt.prompt_id == 0
    assert prompt.messages == ({"role": "user", "content": "ab"},)
    assert prompt.tokens == (1, 97, 98, 2)
    assert prompt.ground_truth == "7"
    assert prompt.data_source == "here"
    assert prompt.extra == {"index": 3}


def test_a_longer_prompt_is_dropped_and_the_others_keep_their_row_numbers(tmp_path):
    path = written(tmp_path, [row("abcd"), row("abc"), row("a")])
    assert [prompt.prompt_id for prompt in load(path)] == [1, 2]


def test_or_it_loses_its_left_end(tmp_path):
    path = written(tmp_path, [row("abcd"), row("abc")])
    found = load(path, drops_overlong=False)
    assert [prompt.tokens for prompt in found] == [(97, 98, 99, 100, 2), (1, 97, 98, 99, 2)]


def test_rows_are_counted_before_the_long_ones_are_dropped(tmp_path):
    path = written(tmp_path, [row("abcd"), row("a"), row("b")])
    assert [prompt.prompt_id for prompt in load(path, max_rows=2)] == [1]


def test_of_shuffled_data_as_many_rows_are_drawn_as_upstream_draws(tmp_path):
    path = written(tmp_path, [row("a") for _ in range(50)])
    found = training_prompts(
        path, recipe_data(path, max_rows=9, shuffles=True), 11, LetterTokenizer()
    )
    expected = np.random.default_rng(11).choice(50, size=9, replace=False).tolist()
    assert [prompt.prompt_id for prompt in found] == expected


def test_equal_prompts_in_two_rows_stay_two(tmp_path):
    found = load(written(tmp_path, [row("a"), row("a")]))
    assert [prompt.prompt_id for prompt in found] == [0, 1]
    assert found[0].tokens == found[1].tokens


def test_the_chat_template_gets_the_recipes_arguments_but_not_ours(tmp_path):
    path = written(tmp_path, [row("a")])
    given = {"shouts": True, "tokenize": False, "add_generation_prompt": False}
    (prompt,) = load(path, chat_template_arguments=given)
    assert prompt.tokens == (1, 97, 33, 2)


def test_arguments_that_the_chat_template_cannot_do_with_are_refused(tmp_path):
    path = written(tmp_path, [row("a")])
    (told,) = problems(path, chat_template_arguments={"shouts": "no"})
    assert told.startswith("row 0: prompt: the model's chat template refuses it: ")


def test_another_column_may_hold_the_messages(tmp_path):
    path = written(tmp_path, [row("a", question=[{"role": "user", "content": "xy"}])])
    (prompt,) = load(path, prompt_field="question")
    assert prompt.tokens == (1, 120, 121, 2)


def test_validation_takes_every_row_that_fits(tmp_path):
    path = written(tmp_path, [row("a"), row("abcd"), row("b")])
    data = recipe_data(path, max_rows=1, prompts_per_step=50)
    found = validation_prompts(path, data, LetterTokenizer())
    assert [prompt.prompt_id for prompt in found] == [0, 2]


def test_a_missing_column_is_named_with_the_columns_there_are(tmp_path):
    path = written(tmp_path, [row("a")])
    with pytest.raises(WrongCall) as raised:
        load(path, prompt_field="promt")
    (problem,) = raised.value.problems
    assert problem.field == "row 0: promt"
    assert problem.reason.startswith("no such column or an empty cell")
    assert problem.fix == (
        "The file has the columns ability, data_source, extra_info, prompt, reward_model"
    )


def test_every_problem_of_every_row_is_told_at_once(tmp_path):
    rows = [
        row("a", reward_model=None),
        row("a", prompt=[{"role": "user", "content": None}], data_source=None),
        row("a"),
        row("a", prompt=[{"role": "assistant", "content": "a"}]),
        row("a", prompt=[]),
    ]
    found = problems(written(tmp_path, rows))
    assert [problem.split(": ")[0] + ": " + problem.split(": ")[1] for problem in found] == [
        "row 0: reward_model",
        "row 1: data_source",
        "row 1: prompt",
        "row 3: prompt",
        "row 4: prompt",
    ]
    assert "a conversation starts with the user" in found[3]


def test_a_column_that_is_wrong_in_every_row_does_not_fill_the_screen(tmp_path):
    found = problems(written(tmp_path, [row("a", reward_model=None) for _ in range(100)]))
    assert len(found) == 21
    assert found[-1] == "rows: 80 more problems like these"


def test_text_in_place_of_messages_is_refused(tmp_path):
    found = problems(written(tmp_path, [row("a", prompt="a")]))
    assert found == ["row 0: prompt: expected [{role, content}], texts"]


def test_a_missing_file_is_named(tmp_path):
    data = recipe_data(written(tmp_path, [row("a")]))
    with pytest.raises(WrongCall, match="no such file"):
        training_prompts(tmp_path / "other.parquet", data, 0, LetterTokenizer())


def test_a_file_without_rows_is_refused(tmp_path):
    assert problems(written(tmp_path, [])) == ["rows: no row in it"]


def test_other_rows_than_the_recipe_was_compiled_for_are_refused(tmp_path):
    path = written(tmp_path, [row("a")])
    (found,) = problems(path, train_sha256="0" * 64)
    assert found == f"rows_sha256: the recipe was compiled for rows with the digest {'0' * 64}"


def test_too_few_prompts_for_one_step_are_refused(tmp_path):
    path = written(tmp_path, [row("a"), row("abcdefgh")])
    (found,) = problems(path, prompts_per_step=2)
    assert "1 of its 2 prompts are left" in found


def test_validation_prompts_that_are_all_too_long_are_refused(tmp_path):
    path = written(tmp_path, [row("abcdefgh")])
    with pytest.raises(WrongCall, match="every prompt is longer than 5 tokens"):
        validation_prompts(path, recipe_data(path), LetterTokenizer())
