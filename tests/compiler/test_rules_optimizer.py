"""How optimizer and learning rate are lowered."""

import pytest

OPTIM = "actor_rollout_ref.actor.optim"


def test_upstream_defaults_are_adamw_at_a_constant_rate(judge):
    written = judge().written
    assert {path: value for path, value in written.items() if path.startswith("optimizer.")} == {
        "optimizer.name": "adamw",
        "optimizer.learning_rate": 1e-6,
        "optimizer.betas": [0.9, 0.999],
        "optimizer.epsilon": 1e-8,
        "optimizer.weight_decay": 0.01,
        "optimizer.max_gradient_norm": 1.0,
    }
    assert written["learning_rate_schedule.kind"] == "constant"
    assert written["learning_rate_schedule.warmup_steps"] == 0


def test_epsilon_comes_from_the_overridden_constructor_arguments(judge):
    judged = judge({f"{OPTIM}.override_optimizer_config.eps": 1e-6})
    assert judged.written["optimizer.epsilon"] == 1e-6
    assert judged.rejected == set()


@pytest.mark.parametrize("empty", [None, {}])
def test_no_constructor_arguments_leave_the_epsilon_of_torch(judge, empty):
    written = judge({f"{OPTIM}.override_optimizer_config": empty}).written
    assert written["optimizer.epsilon"] == 1e-8


@pytest.mark.parametrize(
    ("steps", "ratio", "total", "warmup"),
    [(5, 0.5, 100, 5), (0, 0.25, 30, 7), (-1, 0.1, 9, 0), (-1, 0.0, None, 0)],
)
def test_a_positive_warm_up_count_wins_over_the_share_of_steps(judge, steps, ratio, total, warmup):
    judged = judge(
        {
            f"{OPTIM}.lr_warmup_steps": steps,
            f"{OPTIM}.lr_warmup_steps_ratio": ratio,
            "trainer.total_training_steps": total,
        }
    )
    assert judged.written["learning_rate_schedule.warmup_steps"] == warmup


def test_a_share_of_steps_is_counted_over_all_epochs_of_the_bound_rows(judge):
    launch = {
        f"{OPTIM}.lr_warmup_steps_ratio": 0.1,
        "data.train_batch_size": 256,
        "trainer.total_epochs": 10,
    }
    # 1000 rows are 3 whole batches of 256; 10 epochs are 30 steps.
    assert judge(launch).written["learning_rate_schedule.warmup_steps"] == 3
    unbound = judge(launch, train_rows=None)
    assert unbound.written["learning_rate_schedule.warmup_steps"] is None
    assert unbound.rejected == set()


def test_the_older_name_of_the_schedule_wins(judge):
    judged = judge({f"{OPTIM}.warmup_style": "cosine"})
    assert judged.written["learning_rate_schedule.kind"] == "cosine"
    assert judged[f"{OPTIM}.lr_scheduler_type"].reason.startswith("not read")
    paths = [path for path, _ in judged.writers]
    assert paths.count("learning_rate_schedule.kind") == 1


def test_the_older_name_of_the_gradient_norm_wins_where_it_is_appended(judge):
    judged = judge({f"{OPTIM}.grad_clip": 0.5})
    assert judged.written["optimizer.max_gradient_norm"] == 0.5
    assert [path for path, _ in judged.writers].count("optimizer.max_gradient_norm") == 1


def test_a_cosine_schedule_reads_its_leaves_and_a_constant_one_does_not(judge):
    stated = {
        f"{OPTIM}.min_lr_ratio": 0.1,
        f"{OPTIM}.num_cycles": 1.5,
        f"{OPTIM}.zero_indexed_step": False,
    }
    names = ("min_ratio", "num_cycles", "zero_indexed")
    cosine = judge(stated | {f"{OPTIM}.lr_scheduler_type": "cosine"})
    assert [cosine.written[f"learning_rate_schedule.{name}"] for name in names] == [0.1, 1.5, False]
    constant = judge(stated)
    assert [constant.written[f"learning_rate_schedule.{name}"] for name in names] == [0, 0.5, True]
    assert set(stated) <= constant.warned


def test_a_cosine_without_a_lowest_rate_falls_to_zero(judge):
    judged = judge({f"{OPTIM}.lr_scheduler_type": "cosine", f"{OPTIM}.min_lr_ratio": None})
    assert judged.written["learning_rate_schedule.min_ratio"] == 0.0
