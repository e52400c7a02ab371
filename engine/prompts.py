"""From a Parquet file in upstream's layout to prompts with tokens.

A row: `data_source` (text), `prompt` (list of {role, content}; the recipe may name another column), `ability`,
`reward_model` ({ground_truth, ...}), `extra_info`. Upstream: verl/utils/dataset/rl_dataset.py:69 (v0.9.0).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from miniverl.engine.digest import rows_sha256
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Data
from miniverl.engine.rows import read_rows
from miniverl.engine.trajectory import Prompt

_SHOWN_ROWS = 20  # a column that is wrong is wrong in every row
_OURS = frozenset({"add_generation_prompt", "tokenize", "return_dict", "return_tensors"})


class Tokenizer(Protocol):
    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **arguments: Any,
    ) -> list[int]: ...


def training_prompts(path: Path, data: Data, seed: int, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts to train on, in file order, after `max_rows` and the length rule; see `_with_tokens`.

    Raises WrongCall with everything that is wrong with the file, or when no whole step is left of it.
    """
    rows = _pinned_rows(path, data.train_sha256)
    chosen = _chosen_rows(len(rows), data.max_rows, seed, shuffles=data.shuffles)
    prompts = _with_tokens(path, {number: rows[number] for number in chosen}, data, tokenizer)
    if len(prompts) < data.prompts_per_step:
        reason = (
            f"{len(prompts)} of its {len(rows)} prompts are left after max_rows and the limit of "
            f"{data.max_prompt_tokens} tokens, and a step takes {data.prompts_per_step}"
        )
        fix = "Raise the limit, or take fewer prompts per step"
        raise WrongCall([_problem(path, "rows", len(prompts), reason, fix)])
    return prompts


def validation_prompts(path: Path, data: Data, tokenizer: Tokenizer) -> list[Prompt]:
    """The held-out prompts, in file order. Raises WrongCall as `training_prompts` does."""
    assert data.validation_sha256 is not None, "a recipe without validation data"
    rows = _pinned_rows(path, data.validation_sha256)
    prompts = _with_tokens(path, dict(enumerate(rows)), data, tokenizer)
    if not prompts:
        reason = f"every prompt is longer than {data.max_prompt_tokens} tokens"
        raise WrongCall([_problem(path, "rows", len(rows), reason, "Raise the limit")])
    return prompts


def _pinned_rows(path: Path, sha256: str) -> list[dict[str, Any]]:
    """The file's rows, which must be those that the recipe was compiled for."""
    rows = read_rows(path)
    if not rows:
        raise WrongCall([_problem(path, "rows", 0, "no row in it", "Bind a file with prompts")])
    found = rows_sha256(rows)
    if found != sha256:
        reason = f"the recipe was compiled for rows with the digest {sha256}"
        fix = "Bind that data, or compile again with this one"
        raise WrongCall([_problem(path, "rows_sha256", found, reason, fix)])
    return rows


def _chosen_rows(
    num_rows: int, max_rows: int | None, seed: int, *, shuffles: bool
) -> Sequence[int]:
    """Row numbers after `max_rows`: the first ones, or as many drawn when the data is shuffled.

    The draw is upstream's: verl/utils/dataset/rl_dataset.py:186 (v0.9.0), in the order drawn.
    """
    if max_rows is None or max_rows >= num_rows:
        return range(num_rows)
    if not shuffles:
        return range(max_rows)
    drawn = np.random.default_rng(seed).choice(num_rows, size=max_rows, replace=False)
    return [int(number) for number in drawn]


def _with_tokens(
    path: Path, rows: Mapping[int, Mapping[str, Any]], data: Data, tokenizer: Tokenizer
) -> list[Prompt]:
    """The rows as prompts. One longer than the limit is dropped, or loses its left end."""
    prompts = []
    problems: list[Problem] = []
    for number, row in rows.items():
        found = _row_problems(path, number, row, data.prompt_field)
        problems += found
        if found:
            continue
        try:
            tokens = _tokens(row[data.prompt_field], data.chat_template_arguments, tokenizer)
        # Templates also do with their arguments, and with what a message holds, what the types do not.
        except (TemplateError, TypeError, ValueError) as error:
            field = f"row {number}: {data.prompt_field}"
            reason = f"the model's chat template refuses it: {error}"
            fix = "Correct the messages, or bind another model"
            problems.append(_problem(path, field, row[data.prompt_field], reason, fix))
            continue
        if len(tokens) <= data.max_prompt_tokens or not data.drops_overlong:
            prompts.append(_prompt(number, row, tokens[-data.max_prompt_tokens :], data))
    if problems:
        raise WrongCall(_first(path, problems))
    return prompts


def _tokens(
    messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[int, ...]:
    theirs = {name: value for name, value in arguments.items() if name not in _OURS}
    return tuple(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **theirs
        )
    )


def _prompt(number: int, row: Mapping[str, Any], tokens: tuple[int, ...], data: Data) -> Prompt:
    return Prompt(
        prompt_id=number,
        messages=tuple(row[data.prompt_field]),
        tokens=tokens,
        ground_truth=row["reward_model"]["ground_truth"],
        data_source=row["data_source"],
        extra=row.get("extra_info", {}),
    )


def _row_problems(
    path: Path, number: int, row: Mapping[str, Any], prompt_field: str
) -> list[Problem]:
    reward_model = row.get("reward_model")
    checks = (
        ("data_source", isinstance(row.get("data_source"), str), "expected a text"),
        (prompt_field, _are_messages(row.get(prompt_field)), "expected [{role, content}], texts"),
        (
            "reward_model",
            isinstance(reward_model, Mapping) and "ground_truth" in reward_model,
            "expected a mapping with a ground_truth",
        ),
        (
            "extra_info",
            isinstance(row.get("extra_info", {}), Mapping),
            "expected a mapping, or nothing",
        ),
    )
    return [
        _problem(
            path,
            f"row {number}: {field}",
            row.get(field),
            reason if field in row else f"no such column or an empty cell; {reason}",
            f"The file has the columns {', '.join(sorted(row))}",
        )
        for field, is_right, reason in checks
        if not is_right
    ]


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(message, Mapping) for message in value)
        and all(set(message) == {"role", "content"} for message in value)
        and all(isinstance(text, str) for message in value for text in message.values())
    )


def _first(path: Path, problems: Sequence[Problem]) -> list[Problem]:
    left = len(problems) - _SHOWN_ROWS
    if left <= 0:
        return list(problems)
    rest = _problem(path, "rows", len(problems), f"{left} more problems like these", "Correct all")
    return [*problems[:_SHOWN_ROWS], rest]


def _problem(path: Path, field: str, value: object, reason: str, fix: str) -> Problem:
    return Problem(field=field, value=value, origin=str(path), reason=reason, fix=fix)
