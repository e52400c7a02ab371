"""Reading launches: programs and their wrappers, unknowns, several launches, what a person is told."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from miniverl.compiler.launch import Launch, read_launch, script_text
from miniverl.engine.problem import WrongCall

MAIN = "python3 -m verl.trainer.main_ppo"


def read(text: str, *arguments: str, number: int | None = None, **environment: str) -> Launch:
    return read_launch(text, "run.sh", environment=environment, number=number, arguments=arguments)


def texts(launch: Launch) -> list[str]:
    return [override.text for override in launch.overrides]


def refusal(text: str, *arguments: str, **environment: str) -> str:
    with pytest.raises(WrongCall) as raised:
        read(text, *arguments, **environment)
    return str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        "python -m verl.trainer.main_ppo a.b=1",
        "python3 -u -m verl.trainer.main_ppo a.b=1",
        "/opt/env/bin/python3.11 -X faulthandler -um verl.trainer.main_ppo a.b=1",
        "cd /srv/verl && python3 verl/trainer/main_ppo.py a.b=1",
        "python3 $VERL_HOME/verl/trainer/main_ppo.py a.b=1",
        "nohup python3 -m verl.trainer.main_ppo a.b=1 > log 2>&1 &",
        "ray job submit --address=http://10.0.0.1:8265 --no-wait -- python3 -m verl.trainer.main_ppo a.b=1",
        "ray job submit -- bash -c 'python3 -m verl.trainer.main_ppo a.b=1'",
        "bash -lc 'cd /srv && exec python3 -m verl.trainer.main_ppo a.b=1'",
        "timeout 3d env A=1 nice -n 5 python3 -m verl.trainer.main_ppo a.b=1 | tee log",
        "torchrun --nnodes 1 --nproc_per_node=8 -m verl.trainer.main_ppo a.b=1",
        "accelerate launch --num_processes 8 verl/trainer/main_ppo.py a.b=1",
        "python3 -m torch.distributed.run --standalone -m verl.trainer.main_ppo a.b=1",
        "ssh node1 'cd /srv; python3 -m verl.trainer.main_ppo a.b=1'",
        "docker run --rm image bash -c 'python3 -m verl.trainer.main_ppo a.b=1'",
        "$PYTHON -m verl.trainer.main_ppo a.b=1",
        "(set -x; python3 -m verl.trainer.main_ppo a.b=1) 2>&1 | tee log",
        "time srun --nodes=1 python3 -m verl.trainer.main_ppo a.b=1",
    ],
)
def test_upstreams_program_is_found_behind_what_wraps_it(command: str) -> None:
    launch = read(f"{command}\n")
    assert (launch.entry_point, launch.config_name) == ("verl.trainer.main_ppo", "ppo_trainer")
    assert texts(launch) == ["a.b=1"]


@pytest.mark.parametrize("wrapper", ["torchrun --nproc_per_node 8", "accelerate launch"])
def test_a_launcher_of_one_process_per_device_is_told(wrapper: str) -> None:
    (warning,) = read(f"{wrapper} -m verl.trainer.main_ppo a.b=1\n").warnings
    assert "meant to be started once" in warning


def test_another_program_of_upstream_brings_its_own_config_name() -> None:
    launch = read("torchrun --standalone -m verl.trainer.sft_trainer data.x=1\n")
    assert (launch.entry_point, launch.config_name) == (
        "verl.trainer.sft_trainer",
        "sft_trainer_engine",
    )
    assert launch.warnings == ()


def test_options_of_hydra_are_read_wherever_they_stand() -> None:
    launch = read(f"{MAIN} --config-path=/etc/verl a.b=1 -cn my_trainer.yaml --config-dir extra\n")
    assert (launch.config_path, launch.config_name, launch.config_dir) == (
        "/etc/verl",
        "my_trainer",
        "extra",
    )
    assert texts(launch) == ["a.b=1"]


def test_upstreams_own_config_folder_counts_as_none() -> None:
    assert read(f"{MAIN} --config-path=config a.b=1\n").config_path is None


@pytest.mark.parametrize("option", ["--cfg job", "--multirun", "--help", "--lr 3"])
def test_an_option_that_does_not_launch_once_is_refused(option: str) -> None:
    assert "run.sh:1" in refusal(f"{MAIN} {option} a.b=1\n")


def test_overrides_carry_the_line_they_are_written_in() -> None:
    text = f'A=(\n  a.b=1\n  # a.c=2\n  a.d=3\n)\n{MAIN} \\\n  "${{A[@]}}" \\\n  a.e=4\n'
    assert [(one.line, one.text) for one in read(text).overrides] == [
        (2, "a.b=1"),
        (4, "a.d=3"),
        (8, "a.e=4"),
    ]


def test_the_digest_is_over_the_files_bytes(tmp_path: Path) -> None:
    raw = f"{MAIN} \\\r\n  a.b=1 # caf\xe9\r\n".encode("latin-1")
    path = tmp_path / "run.sh"
    path.write_bytes(raw)
    launch = read(script_text(path))
    assert launch.sha256 == hashlib.sha256(raw).hexdigest()
    assert texts(launch) == ["a.b=1"]
    assert "lines end as on Windows" in launch.warnings[0]


def unknown(text: str, *arguments: str, **environment: str) -> list[tuple[str, Sequence[str]]]:
    launch = read(text, *arguments, **environment)
    return [(one.name, one.needs) for one in launch.unknowns]


def test_what_only_running_could_tell_is_an_unknown_of_its_own_name() -> None:
    text = f"NOW=$(date +%s)\n{MAIN} a.b=run_$NOW a.c=`nproc` a.d=$HOME/x a.e=$1 a.f=$RANDOM\n"
    assert unknown(text) == [
        ("$(date +%s)", ("$(date +%s)",)),
        ("`nproc`", ("`nproc`",)),
        ("HOME", ("HOME",)),
        ("$1", ("$1",)),
        ("RANDOM", ("RANDOM",)),
    ]
    assert texts(read(text))[:3] == ["a.b=run_$(date +%s)", "a.c=`nproc`", "a.d=${HOME}/x"]


def test_an_unknown_is_bound_by_its_name() -> None:
    (override,) = read(f"{MAIN} a.b=x_$(date +%s)_y\n").overrides
    assert override.bound({"$(date +%s)": "0"}) == "a.b=x_0_y"
    environment = {"$(date +%s)": "1"}
    bound = read_launch(f"{MAIN} a.b=$(date +%s)\n", "run.sh", environment=environment)
    assert (texts(bound), bound.bindings_used) == (["a.b=1"], environment)


def test_a_default_with_an_unknown_asks_for_the_variable_around_it() -> None:
    text = f"DEVICE=${{DEVICE:-$(probe && echo npu || echo gpu)}}\n{MAIN} a.b=$DEVICE\n"
    assert unknown(text) == [("$(probe && echo npu || echo gpu)", ("DEVICE",))]
    assert texts(read(text, DEVICE="gpu")) == ["a.b=gpu"]


def test_defaults_that_the_user_could_have_set_are_told() -> None:
    text = f"N=${{N:-4}}\nLR=${{LR:-1e-6}}\nINNER=\n{MAIN} a.n=$N a.lr=$LR a.i=${{INNER:-x}}\n"
    launch = read(text, N="8")
    assert launch.defaults_used == {"LR": "1e-6"}
    assert launch.bindings_used == {"N": "8"}


def test_a_branch_that_only_running_could_choose_leaves_what_differs_unknown() -> None:
    text = f"A=0\nif [ -d /data ]; then A=1 B=2; else A=3 B=2; fi\n{MAIN} a.a=$A a.b=$B\n"
    assert unknown(text) == [("A", ("[ -d /data ]",))]
    assert texts(read(text))[1] == "a.b=2"
    chosen = read_launch(text, "run.sh", environment={"[ -d /data ]": "true"})
    assert texts(chosen) == ["a.a=1", "a.b=2"]


def test_an_undecided_case_asks_for_its_variable() -> None:
    text = f"case $GPU in h100) TP=1 ;; a100) TP=2 ;; *) exit 1 ;; esac\n{MAIN} a.tp=$TP\n"
    assert unknown(text) == [("TP", ("GPU",))]
    assert texts(read(text, GPU="a100")) == ["a.tp=2"]


def test_a_way_that_ends_the_script_is_taken_not_to_be_gone_and_told() -> None:
    launch = read(f"if ! command -v nvidia-smi; then\n  exit 1\nfi\n{MAIN} a.b=1\n")
    assert texts(launch) == ["a.b=1"]
    assert "run.sh:2: whether the script goes on here depends on" in launch.warnings[0]


def test_a_loop_of_unknown_length_leaves_what_it_changes_unknown() -> None:
    text = f"N=0\nfor f in $(ls); do N=$((N + 1)); done\n{MAIN} a.n=$N\n"
    assert unknown(text) == [("N", ("$(ls)",))]


def test_a_launch_in_an_undecided_branch_is_told() -> None:
    launch = read(f"if [ -f model.bin ]; then\n{MAIN} a.b=1\nfi\n")
    assert "whether this launch is reached: it depends on [ -f model.bin ]" in launch.warnings[0]


def test_an_unset_array_or_flag_is_one_unknown_override() -> None:
    assert unknown(f"{MAIN} a.b=1 $EXTRA_ARGS\n") == [("EXTRA_ARGS", ("EXTRA_ARGS",))]
    assert texts(read(f"{MAIN} a.b=1 $EXTRA_ARGS\n", EXTRA_ARGS="a.c=2 a.d=3"))[1:] == [
        "a.c=2",
        "a.d=3",
    ]


def test_a_value_that_the_script_requires_is_asked_for_in_its_words() -> None:
    (one,) = read(f"M=${{M:?set M to a model}}\n{MAIN} a.b=$M\n").unknowns
    assert "set M to a model" in one.reason
    assert one.fix == "Give --env M=VALUE"


def test_a_placeholder_is_an_unknown_quoted_or_not() -> None:
    text = f"{MAIN} data.files=<your data path> 'model.path=<path>/x' data.stop='<think>'\n"
    assert [name for name, _ in unknown(text)] == ["<your data path>", "<path>"]
    assert texts(read(text))[2] == "data.stop=<think>"


def test_another_file_that_is_sourced_is_named_and_not_read() -> None:
    launch = read(f"source env.sh\n{MAIN} a.b=$FROM_THERE\n")
    assert "`source env.sh` reads another file" in launch.warnings[0]
    assert [one.name for one in launch.unknowns] == ["FROM_THERE"]


def test_a_binding_that_nothing_reads_is_told_with_the_name_that_was_meant() -> None:
    launch = read(f"LR=${{LR:-1}}\nN=2\n{MAIN} a.b=$LR$N\n", LRR="2", N="3")
    assert launch.warnings == (
        "--env LRR: the script does not read it. Did you mean LR?",
        "--env N: the script sets it itself",
    )


SWEEP = f"for lr in 1e-5 1e-6; do\n  {MAIN} a.same=1 a.lr=$lr\ndone\n"


def test_several_launches_are_listed_with_what_tells_them_apart() -> None:
    said = refusal(SWEEP)
    assert "1: line 2, verl.trainer.main_ppo a.lr=1e-5; 2: line 2" in said
    assert "--launch NUMBER" in said


def test_a_launch_is_chosen_by_its_number() -> None:
    assert texts(read(SWEEP, number=2)) == ["a.same=1", "a.lr=1e-6"]
    with pytest.raises(WrongCall, match="from 1 to 2"):
        read(SWEEP, number=3)


def test_the_only_training_is_chosen_among_other_programs() -> None:
    text = f"python3 prepare.py --out x\n{MAIN} a.b=1\npython3 -m verl.trainer.main_eval c.d=2\n"
    launch = read(text)
    assert texts(launch) == ["a.b=1"]
    assert "also launches verl.trainer.main_eval in line 3" in launch.warnings[0]


def test_a_later_duplicate_wins_and_is_told() -> None:
    launch = read(f"{MAIN} a.b=1 \\\n  +a.c=2 \\\n  a.b=3\n")
    assert launch.warnings == ("run.sh:1: a.b=1 does not count: a.b=3 in line 3 comes later",)


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (" \\\n  # c.d=2 \\\n  e.f=3\n", "run.sh:3: e.f=3 is no part of the launch: the comment"),
        (
            " # note \\\n  e.f=3\n",
            "run.sh:2: e.f=3 is no part of the launch: the comment in line 1",
        ),
        (
            " \\\n\n  e.f=3 \\\n  g.h=4\n",
            "run.sh:3: e.f=3 is no part of the launch: the blank line 2",
        ),
        ("\n  e.f=3\n", "run.sh:2: e.f=3 is no part of the launch: line 1 does not end with"),
        (" \\ \n  e.f=3\n", "run.sh:1: a backslash with a blank behind it"),
        (" | tee log \\\n  e.f=3\n", "run.sh:2: e.f=3 goes to tee"),
    ],
)
def test_an_override_that_is_cut_off_is_told(rest: str, why: str) -> None:
    launch = read(f"{MAIN} a.b=1{rest}")
    assert "e.f=3" not in texts(launch)
    assert any(one.startswith(why) for one in launch.warnings)


def test_an_empty_value_is_told() -> None:
    assert read(f"X=\n{MAIN} a.b=$X\n").warnings == ("run.sh:2: a.b is set to nothing",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('if [ $# -lt 1 ]; then\n  echo "Usage: run.sh DIR"\n  exit 1\nfi\n', "Usage: run.sh DIR"),
        ("bash examples/run_it.sh a.b=1\n", "another script, examples/run_it.sh"),
        ("python3 -m mine.train --lr 3\n", "it starts mine.train"),
        ("echo nothing\n", "none of upstream's programs"),
        (f"exit 0\n{MAIN} a.b=1\n", "ends before it launches anything: `exit 0`"),
        ("$COMMAND a.b=1\n", "--env COMMAND=VALUE"),
        (f"{MAIN} --config-name $CONFIG\n", "--env CONFIG=VALUE"),
    ],
)
def test_a_script_without_a_launch_says_why(text: str, why: str) -> None:
    assert why in refusal(text)


def test_arguments_reach_the_launch() -> None:
    text = f'[ $# -ge 1 ] || exit 1\nengine=$1; shift\n{MAIN} a.e=$engine "$@"\n'
    assert texts(read(text, "vllm", "c.d=2")) == ["a.e=vllm", "c.d=2"]


def test_a_function_can_be_called_more_than_once() -> None:
    text = f"run() {{ {MAIN} a.n=$1; }}\nrun 1\nrun 2\n"
    assert texts(read(text, number=1)) == ["a.n=1"]
    assert texts(read(text, number=2)) == ["a.n=2"]
