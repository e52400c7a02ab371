"""How rewards are lowered, and the sections that wait behind a switch."""

import pytest

MANAGER = "reward.reward_manager.name"


@pytest.mark.parametrize("manager", ["naive", "remote"])
def test_the_bound_scorer_stands_in_for_the_one_upstream_picks(judge, manager):
    judged = judge({MANAGER: manager}, reward="last_number", reward_arguments={"a": 1})
    assert judged.written["reward"] == {
        "scorer": "last_number",
        "arguments": {"a": 1},
        "function": None,
        "model": None,
        "overlong_penalty": None,
    }
    assert judged[MANAGER].classification == "semantically_conformant"


def test_an_unbound_reward_is_accepted_and_left_open(judge):
    judged = judge(reward=None)
    assert judged.rejected == set()
    assert judged.written["reward"] is None


def test_a_known_other_manager_is_not_implemented_and_an_unknown_one_unsupported(judge):
    assert judge({MANAGER: "dapo"})[MANAGER].classification == "not_implemented"
    assert judge({MANAGER: "mine"})[MANAGER].classification == "unsupported"


def test_the_critic_section_is_not_read_without_a_critic(judge):
    judged = judge({"critic.optim.lr": 1.0, "critic.ppo_micro_batch_size": 4})
    assert judged.rejected == set()
    assert {"critic.optim.lr", "critic.ppo_micro_batch_size"} <= judged.warned
    fields = [field for field in judged.verdicts if field.startswith("critic.")]
    classes = {field: judged[field].classification for field in fields}
    assert classes.pop("critic.enable") == "exact"
    assert set(classes.values()) == {"informational_only"}


@pytest.mark.parametrize(
    ("estimator", "enable", "verdict", "fix"),
    [
        ("gae", None, "exact", None),
        ("gae", True, "exact", None),
        ("gae", False, "unsupported", "Remove critic.enable, or set algorithm.adv_estimator=grpo"),
        ("grpo", True, "exact", None),
        ("grpo", None, "exact", None),
        ("grpo", False, "exact", None),
    ],
)
def test_a_critic_is_trained_where_it_is_asked_for_or_needed(
    judge, estimator, enable, verdict, fix
):
    judged = judge({"algorithm.adv_estimator": estimator, "critic.enable": enable})
    assert (judged["critic.enable"].classification, judged["critic.enable"].fix) == (verdict, fix)
    assert judged.rejected == ({"critic.enable"} if fix else set())


def test_arguments_of_a_reward_function_wait_for_the_function(judge):
    arguments = "reward.custom_reward_function.reward_kwargs.scale"
    judged = judge({"reward.custom_reward_function.path": "f.py", arguments: 2})
    assert judged.rejected == {"reward.custom_reward_function.path"}
    assert judged[arguments].warning is None
