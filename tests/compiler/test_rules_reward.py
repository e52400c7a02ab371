"""How rewards are lowered, and the sections that wait behind a switch."""

import pytest

MANAGER = "reward.reward_manager.name"
FUNCTION = "reward.custom_reward_function"
BOUND = {"sha256": "f" * 64, "name": "compute_score"}
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
PARTS = {"enable": True, "len": 128, "penalty_factor": 0.5, "log": True}
PENALTY = {f"{BUFFER}.{part}": value for part, value in PARTS.items()}
PENALTY["reward.reward_kwargs.max_resp_len"] = 512


@pytest.mark.parametrize("manager", ["naive", "remote", "dapo"])
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
    assert judge({MANAGER: "gdpo"})[MANAGER].classification == "not_implemented"
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


@pytest.fixture
def penalised(judge):
    """A launch that penalises long responses, judged with changes; a leaf changed to None is left out."""

    def judged(changes=None, **bindings):
        leaves = {MANAGER: "dapo", **PENALTY, **(changes or {})}
        return judge({f: value for f, value in leaves.items() if value is not None}, **bindings)

    return judged


def test_the_manager_dapo_takes_a_penalty_off_long_responses(penalised):
    judged = penalised()
    assert judged.rejected == set()
    assert judged.written["reward"]["overlong_penalty"] == {
        "max_response_tokens": 512,
        "buffer_tokens": 128,
        "factor": 0.5,
    }


def test_a_penalty_that_is_off_is_none_and_its_leaves_are_not_read(penalised):
    judged = penalised({f"{BUFFER}.enable": False})
    assert judged.rejected == set()
    assert judged.written["reward"]["overlong_penalty"] is None
    assert judged[f"{BUFFER}.len"].classification == "informational_only"


def test_only_the_manager_dapo_penalises(penalised):
    judged = penalised({MANAGER: "naive"})
    assert judged.rejected == set()
    assert set(PENALTY) <= judged.warned
    assert judged.written["reward"]["overlong_penalty"] is None


@pytest.mark.parametrize("part", ["max_resp_len", *(f"overlong_buffer_cfg.{p}" for p in PARTS)])
def test_the_pin_stops_where_a_part_of_the_penalty_is_missing(penalised, part):
    field = f"reward.reward_kwargs.{part}"
    judged = penalised({field: None})
    assert judged.rejected == {MANAGER}
    assert judged[MANAGER].fix == f"Set {field}"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("overlong_buffer_cfg.enable", "yes"),
        ("overlong_buffer_cfg.len", 0),
        ("overlong_buffer_cfg.len", 513),
        ("overlong_buffer_cfg.penalty_factor", -1.0),
        ("overlong_buffer_cfg.log", 1),
        ("max_resp_len", 512.0),
    ],
)
def test_a_penalty_without_a_meaning_is_refused_where_it_is_set(penalised, part, value):
    field = f"reward.reward_kwargs.{part}"
    assert penalised({field: value}).rejected == {field}


def test_groups_are_told_apart_by_the_score_before_the_penalty(penalised):
    group_filter = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
    }
    plain = penalised({**group_filter, f"{BUFFER}.enable": False})
    assert plain.written["group_filter.metric"] == "reward"
    assert penalised(group_filter).written["group_filter.metric"] == "acc"
    lengths = {**group_filter, "algorithm.filter_groups.metric": "overlong"}
    assert penalised(lengths).written["group_filter.metric"] == "overlong"
    silent = penalised({**lengths, f"{BUFFER}.log": False})
    assert silent.rejected == {"algorithm.filter_groups.metric"}


def test_the_bound_function_runs_in_place_of_the_file_that_the_launch_names(judge):
    arguments = {f"{FUNCTION}.reward_kwargs.scale": 2, f"{FUNCTION}.reward_kwargs.words.few": [1]}
    launch = {f"{FUNCTION}.path": "/there/f.py", **arguments}
    judged = judge(launch, reward=None, reward_function=BOUND)
    assert judged.rejected == set()
    assert not {field for field in judged.warned if field.startswith(FUNCTION)}
    assert judged.written["reward"] == {
        "scorer": "function",
        "arguments": {"scale": 2, "words": {"few": [1]}},
        "function": BOUND,
        "model": None,
        "overlong_penalty": None,
    }


def test_a_function_may_be_bound_where_the_launch_names_none(judge):
    judged = judge(reward=None, reward_function=BOUND)
    assert judged.written["reward"]["scorer"] == "function"
    assert judged.written["reward"]["arguments"] == {}


def test_a_scorer_may_stand_in_for_the_function_that_the_launch_names(judge):
    launch = {f"{FUNCTION}.path": "f.py", f"{FUNCTION}.reward_kwargs.scale": 2}
    judged = judge(launch, reward="last_number")
    assert judged.rejected == set()
    assert judged.written["reward"]["scorer"] == "last_number"
    assert judged.written["reward"]["arguments"] == {}
    assert f"{FUNCTION}.reward_kwargs.scale" in judged.warned
    waiting = judge(launch, reward=None)
    assert waiting.rejected == set()
    assert waiting.written["reward"] is None


def test_a_function_of_another_name_is_bound_with_a_warning(judge):
    launch = {f"{FUNCTION}.path": "f.py", f"{FUNCTION}.name": "mine"}
    warning = judge(launch, reward=None, reward_function=BOUND)[f"{FUNCTION}.name"].warning
    assert warning == f"{FUNCTION}.name is mine, and compute_score is bound in its place"


def test_arguments_are_not_read_without_a_function_in_the_launch(judge):
    argument = f"{FUNCTION}.reward_kwargs.scale"
    judged = judge({argument: 2}, reward=None, reward_function=BOUND)
    assert argument in judged.warned
    assert judged.written["reward"]["arguments"] == {}


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("path", ""),
        ("path", 3),
        ("name", None),
        ("reward_kwargs", None),
        ("reward_kwargs.scale", float("nan")),
        ("reward_kwargs.scale", [2**53]),
    ],
)
def test_a_function_that_the_pin_cannot_call_is_refused(judge, leaf, value):
    launch = {f"{FUNCTION}.path": "f.py", f"{FUNCTION}.{leaf}": value}
    assert judge(launch, reward=None, reward_function=BOUND).rejected == {f"{FUNCTION}.{leaf}"}


def test_what_only_the_function_knows_may_tell_groups_apart(judge):
    launch = {
        f"{FUNCTION}.path": "f.py",
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "mine",
    }
    bindings = {"reward": None, "reward_metrics": None, "reward_function": BOUND}
    assert judge(launch, **bindings).written["group_filter.metric"] == "mine"
