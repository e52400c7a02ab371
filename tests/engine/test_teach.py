"""Teacher targets against transformers' own logits, the rule for ties by hand, and what the log says of them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from miniverl.engine import score as scores
from miniverl.engine.experience import TeacherTargets
from miniverl.engine.models import Model
from miniverl.engine.problem import Refused
from miniverl.engine.recipe import Teacher
from miniverl.engine.teach import most_probable, target_row, teacher_targets
from miniverl.engine.teachers import load_frozen
from miniverl.engine.trajectory import Trajectory

VOCABULARY = 34


def trajectory(prompt_id: int, sample: int, response: tuple[int, ...]) -> Trajectory:
    return Trajectory(
        prompt_id=prompt_id,
        sample=sample,
        prompt_tokens=(1, 9 + prompt_id, 5, 2)[prompt_id:],
        response_tokens=response,
        is_finished=True,
        response="",
        reward=0.0,
    )


TRAJECTORIES = (
    trajectory(0, 0, (4, 9, 3)),
    trajectory(0, 1, (6,)),
    trajectory(1, 0, (6, 8, 8, 30, 3)),
)


@pytest.fixture
def teacher(make_model: Callable[..., Path]) -> Model:
    recipe = Teacher(key=None, weights_sha256="", dtype="float32")
    return load_frozen(recipe, make_model(Qwen3Config, num_hidden_layers=1), "cpu")


@pytest.mark.parametrize("micro_batch_tokens", [1, 8, 1000])
def test_targets_are_the_teachers_log_probs_of_the_very_tokens(
    teacher: Model, monkeypatch: pytest.MonkeyPatch, micro_batch_tokens: int
) -> None:
    monkeypatch.setattr(scores, "_CHUNK_LOGITS", 44)
    found = teacher_targets(
        teacher,
        TRAJECTORIES,
        micro_batch_tokens=micro_batch_tokens,
        top_k=3,
        num_tokens=VOCABULARY,
    )
    for each, targets in zip(TRAJECTORIES, found, strict=True):
        tokens_1T = torch.tensor([each.prompt_tokens + each.response_tokens])
        logits_RV = teacher.network(tokens_1T).logits[0, len(each.prompt_tokens) - 1 : -1]
        log_probs_RV = logits_RV.log_softmax(-1)
        top = log_probs_RV.topk(3)
        tokens_R1 = torch.tensor(each.response_tokens)[:, None]
        torch.testing.assert_close(
            targets.log_probs_R, log_probs_RV.gather(1, tokens_R1)[:, 0], atol=2e-6, rtol=1e-6
        )
        assert targets.tokens_RK.tolist() == top.indices.tolist()
        torch.testing.assert_close(targets.top_log_probs_RK, top.values, atol=2e-6, rtol=1e-6)


def test_without_top_k_there_are_no_other_tokens(teacher: Model) -> None:
    for targets in teacher_targets(
        teacher, TRAJECTORIES, micro_batch_tokens=100, top_k=None, num_tokens=VOCABULARY
    ):
        assert targets.tokens_RK is None
        assert targets.top_log_probs_RK is None


def test_a_token_that_the_student_lacks_is_no_target_and_keeps_its_probability(
    teacher: Model,
) -> None:
    every, fewer = (
        teacher_targets(
            teacher, TRAJECTORIES, micro_batch_tokens=100, top_k=2, num_tokens=num_tokens
        )
        for num_tokens in (VOCABULARY, 31)
    )
    for of_all, of_some in zip(every, fewer, strict=True):
        assert of_some.tokens_RK.max() < 31
        assert torch.equal(of_some.log_probs_R, of_all.log_probs_R)
        has_all_R = (of_all.tokens_RK < 31).all(-1)
        assert torch.equal(of_some.tokens_RK[has_all_R], of_all.tokens_RK[has_all_R])
        assert torch.equal(of_some.top_log_probs_RK[has_all_R], of_all.top_log_probs_RK[has_all_R])


def test_of_equal_logits_the_smaller_tokens_come_first() -> None:
    logits_CV = torch.tensor(
        [
            [2.0, 5.0, 2.0, 2.0, 5.0],
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [-1.0, -3.0, 4.0, -torch.inf, -1.0],
        ]
    )
    assert most_probable(logits_CV, 3).tolist() == [[1, 4, 0], [0, 1, 2], [2, 0, 4]]
    assert most_probable(logits_CV, 1).tolist() == [[1], [0], [2]]
    assert most_probable(logits_CV, 5).tolist()[2] == [2, 0, 4, 1, 3]


def test_the_most_probable_are_those_of_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(5)
    logits_CV = torch.randint(6, (40, 50), generator=generator).float()
    expected_CK = logits_CV.sort(dim=-1, descending=True, stable=True).indices[:, :8]
    assert torch.equal(most_probable(logits_CV, 8), expected_CK)


def test_a_teacher_that_gives_no_numbers_is_refused(teacher: Model) -> None:
    teacher.head_VH.fill_(torch.nan)
    with pytest.raises(Refused, match="the teacher's log-probabilities are not finite"):
        teacher_targets(
            teacher, TRAJECTORIES, micro_batch_tokens=100, top_k=2, num_tokens=VOCABULARY
        )


def test_the_log_says_which_teacher_and_what_tells_its_targets_from_others() -> None:
    log_probs_R = torch.tensor([-1.0, -2.5])
    tokens_RK = torch.tensor([[3], [0]])
    top_R1 = torch.tensor([[0.5], [0.25]]).log()
    plain = TeacherTargets(log_probs_R=log_probs_R, tokens_RK=None, top_log_probs_RK=None)
    row = target_row(4, TRAJECTORIES[1], "tiny", plain)
    assert row == {
        "step": 4,
        "prompt_id": 0,
        "sample": 1,
        "teacher": "tiny",
        "log_prob_mean": -1.75,
        "top_mass_mean": None,
        "targets_sha256": hashlib.sha256(bytes.fromhex("000080bf000020c0")).hexdigest(),
    }
    other = TeacherTargets(log_probs_R=log_probs_R, tokens_RK=tokens_RK, top_log_probs_RK=top_R1)
    row_with_top = target_row(4, TRAJECTORIES[1], None, other)
    assert row_with_top["top_mass_mean"] == pytest.approx(0.375)
    assert row_with_top["targets_sha256"] != row["targets_sha256"]
