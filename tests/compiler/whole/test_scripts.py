"""Launch scripts: what they launch is compiled, and what only running them could tell is frozen or asked for."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from miniverl.compiler import profiles, scripts
from miniverl.compiler import source as sources
from miniverl.compiler.launch import read_launch
from miniverl.compiler.lower import Compiled, compile_script, compile_source
from miniverl.compiler.rule import Class
from miniverl.compiler.scripts import Given
from miniverl.compiler.source import Source
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import Problem, Refused, WrongCall

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[1]
GRPO = HERE / "data" / "run_grpo.sh"
STAMP = "$(date +%Y%m%d_%H%M)"
HOME = {"HOME": "/home/user"}
MAIN = "python3 -m verl.trainer.main_ppo"
RUNNABLE = (
    "algorithm.adv_estimator=grpo data.train_files=train.parquet data.val_files=[] "
    "actor_rollout_ref.model.path=model actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True"
)
OFFICIAL = sorted((HERE / "launches").glob("*.json"))


def given(number: int | None = None, arguments: Sequence[str] = (), **environment: str) -> Given:
    return Given(environment=environment, arguments=arguments, number=number)


@pytest.fixture
def compile_text(tmp_path: Path):
    """Compiles a script of that text, called run.sh."""

    def compiled(text: str, *overrides: str, by: Given | None = None) -> Compiled:
        path = tmp_path / "run.sh"
        path.write_text(text, encoding="utf-8")
        return compile_script(path, overrides, by or given())

    return compiled


def told(problems: Sequence[Problem]) -> list[tuple[str, str, str]]:
    return [(one.field, one.origin, one.fix) for one in problems]


@pytest.mark.parametrize("path", OFFICIAL, ids=lambda path: path.stem)
def test_a_script_for_each_official_launch_hands_over_its_overrides(path: Path):
    """One array for each section, appended to as official scripts do, and the rest on the command line."""
    overrides: list[str] = json.loads(path.read_text(encoding="utf-8"))["overrides"]
    stamp, split = "19700101_0000", len(overrides) // 2
    lines = ["STAMP=${STAMP:-" + stamp + "}", "ARGS=()"]
    for text in overrides[:split]:
        key, _, value = text.partition("=")
        lines.append(f"ARGS+=({key}=" + '"' + value.replace('"', '\\"') + '")')
    lines.append(f'{MAIN} "${{ARGS[@]}}" \\')
    for text in overrides[split:]:
        before, found, after = text.partition(stamp)
        quoted = "'" + before + "'" + ('"$STAMP"' if found else "") + "'" + after + "'"
        lines.append(f"    {quoted} \\")
    launch = read_launch("\n".join([*lines, '    "$@"', ""]), "run.sh", environment={})
    assert [one.text for one in launch.overrides] == overrides
    assert launch.unknowns == ()


@pytest.fixture(scope="module")
def classes(compiled) -> dict[str, Class]:
    return {one.field: one.classification for one in compiled().findings}


@pytest.fixture(scope="module")
def script(classes) -> Source:
    """The script with its home folder given, and its date unknown."""
    launch = scripts.read(GRPO, given(**HOME))
    draft = scripts.compose(launch, (), version="0.9.0", progress=quiet)
    return scripts.settled(draft, classes)


def test_a_script_of_the_official_grpo_launch_compiles_to_the_same_recipe(script, compiled, bound):
    launch = scripts.read(GRPO, given(**HOME, **{STAMP: "19700101_0000"}))
    assert [one.text for one in launch.overrides] == list(sources.launch("grpo").overrides)
    result = compile_source(script, bound, profiles.named(None))
    assert result.recipe.sha256 == compiled().recipe.sha256


def test_a_date_in_the_name_of_a_run_is_frozen_and_said(script, unbound):
    result = compile_source(script, unbound, profiles.named(None))
    assert result.status == "accepted"
    rows = {
        row["source_field"]: (row["source_value"], row["local_value"])
        for row in result.report["local_lowering"]
        if row["kind"] == "frozen"
    }
    name = "qwen3_8b_grpo_vllm_fsdp_"
    assert rows["trainer.experiment_name"] == (f"{name}{STAMP}", f"{name}<{STAMP}>")
    assert rows.keys() == {
        "actor_rollout_ref.rollout.trace.experiment_name",
        "trainer.default_local_dir",
        "trainer.experiment_name",
    }


def test_the_report_names_the_script_without_its_folder(script, unbound):
    report = compile_source(script, unbound, profiles.named(None)).report
    assert report["source"]["script"] == "run_grpo.sh"
    assert report["source"]["script_sha256"] == hashlib.sha256(GRPO.read_bytes()).hexdigest()
    assert str(GRPO.parent) not in json.dumps(report)


def test_every_override_names_its_line_and_a_later_one_its_place():
    by = given(arguments=["vllm", "data.seed=1"], **HOME)
    result = compile_script(GRPO, ["trainer.save_freq=5"], by)
    origins = {one.field: one.origin for one in result.findings}
    assert origins["actor_rollout_ref.actor.kl_loss_coef"] == (
        "run_grpo.sh:55: actor_rollout_ref.actor.kl_loss_coef=0.001"
    )
    assert origins["data.seed"] == "run_grpo.sh:87: data.seed=1"
    assert origins["trainer.save_freq"] == "override 1: trainer.save_freq=5"
    rows = [row for row in result.report["local_lowering"] if row["kind"] == "override"]
    assert [(row["source_field"], row["source_value"], row["local_value"]) for row in rows] == [
        ("trainer.save_freq", 20, 5)
    ]


def test_an_unknown_that_reaches_more_is_asked_for_once(compile_text):
    text = f"{MAIN} {RUNNABLE} data.max_prompt_length=$LENGTH data.max_response_length=$LENGTH\n"
    result = compile_text(text)
    assert result.status == "needs_user_input"
    assert told(result.problems) == [
        ("data.max_prompt_length", "run.sh:1", "Give --env LENGTH=VALUE")
    ]
    assert "data.max_response_length needs it too" in result.problems[0].reason
    assert result.report["unresolved_fields"] == ["data.max_prompt_length"]
    rows = {row["upstream_field"]: row for row in result.report["field_classification"]}
    row = rows["data.max_prompt_length"]
    assert (row["source_value"], row["resolution_status"]) == ("<LENGTH>", "unresolved")
    assert compile_text(text, by=given(LENGTH="64")).status == "accepted"


def test_what_is_wrong_whatever_an_unknown_holds_is_told_with_it(compile_text):
    """The batch size decides which mini-batches are possible, and says nothing about the estimator."""
    result = compile_text(
        f"{MAIN} {RUNNABLE} data.train_batch_size=$BATCH algorithm.adv_estimator=remax\n"
    )
    assert result.status == "rejected"
    assert [one.field for one in result.problems] == [
        "algorithm.adv_estimator",
        "data.train_batch_size",
    ]
    assert result.report["unsupported_fields"] == ["algorithm.adv_estimator"]
    assert [one["field"] for one in result.report["required_user_input"]] == [
        "data.train_batch_size"
    ]


def test_an_unknown_that_decides_what_is_composed_is_asked_for(compile_text):
    text = f"{MAIN} {RUNNABLE} model_engine=$ENGINE $EXTRA trainer.logger=[$LOGGER]\n"
    result = compile_text(text)
    assert result.status == "needs_user_input"
    assert told(result.problems) == [
        ("override", "run.sh:1", "Give --env EXTRA=VALUE"),
        ("model_engine", "run.sh:1", "Give --env ENGINE=VALUE"),
    ]


def test_a_gap_that_the_script_leaves_is_asked_for(compile_text):
    text = f'{MAIN} {RUNNABLE} actor_rollout_ref.model.path="<path to your model>"\n'
    result = compile_text(text)
    assert result.status == "needs_user_input"
    (problem,) = result.problems
    assert problem.fix == "Give --env '<path to your model>'=VALUE"


def test_what_the_reader_of_scripts_warns_of_is_in_the_report(compile_text):
    result = compile_text(
        f"{MAIN} {RUNNABLE} trainer.nnodes=1 \\\n    trainer.nnodes=2\n\n    data.seed=1\n"
    )
    assert any("trainer.nnodes=1 does not count" in one for one in result.report["warnings"])
    assert any("data.seed=1 is no part of the launch" in one for one in result.report["warnings"])


def test_of_several_launches_one_has_to_be_chosen(compile_text, tmp_path):
    text = f"{MAIN} {RUNNABLE} data.seed=1\n{MAIN} {RUNNABLE} data.seed=2\n"
    with pytest.raises(WrongCall, match=r"2 launches \(1: line 1.*2: line 2"):
        compile_text(text)
    launch = scripts.read(tmp_path / "run.sh", given(number=2))
    assert launch.overrides[-1].text == "data.seed=2"


def test_other_programs_and_trees_are_told_at_once(compile_text):
    with pytest.raises(WrongCall) as raised:
        compile_text(
            "python3 -m verl.trainer.sft_trainer --config-path=/my/tree --config-dir=/other data.a=1\n"
        )
    assert [one.field for one in raised.value.problems] == [
        "program",
        "--config-path",
        "--config-dir",
    ]
    assert "it fine-tunes on given responses" in raised.value.problems[0].reason


def test_another_config_of_upstreams_is_a_wrong_call(compile_text):
    with pytest.raises(WrongCall, match=r"run\.sh:1\): profile .* covers ppo_trainer only"):
        compile_text(f"{MAIN} --config-name=ppo_megatron_trainer.yaml data.seed=1\n")


def test_what_does_not_compose_is_refused_with_its_line_and_without_tokens(compile_text):
    with pytest.raises(Refused) as raised:
        compile_text(f"{MAIN} {RUNNABLE} \\\n    no.such.key=$A \\\n    no.such.leaf=1 $EXTRA\n")
    (problem,) = [one for one in raised.value.problems if one.field == "no.such.leaf"]
    assert problem.origin == "run.sh:3: no.such.leaf=1"
    assert "Give --env A=VALUE" in str(raised.value)
    assert "unknown1z" not in str(raised.value)


def test_a_script_that_means_harm_is_read_and_does_nothing(compile_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "s3cret")
    result = compile_text(
        "touch evil; rm -rf run.sh; eval 'touch evil'; x=$(touch evil)\n"
        f"{MAIN} {RUNNABLE} trainer.project_name=$(cat /etc/hostname; touch evil) "
        "trainer.experiment_name=$SECRET trainer.logger=[`touch evil`] > evil\n"
    )
    assert result.status == "accepted"
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert "s3cret" not in json.dumps(result.report)


def test_values_are_given_by_name_and_every_mistake_in_them_is_told():
    texts = ["A=1", "EMPTY=", "$(date +%s)=2", '[ "$X" == y ]=true', "B=c=d"]
    assert scripts.environment(texts) == {
        "A": "1",
        "EMPTY": "",
        "$(date +%s)": "2",
        '[ "$X" == y ]': "true",
        "B": "c=d",
    }
    with pytest.raises(WrongCall) as raised:
        scripts.environment(["A", "B=1", "B=2", "=3"])
    assert [one.value for one in raised.value.problems] == ["A", "B=2", "=3"]


def test_a_script_is_known_by_its_suffix_and_other_files_by_being_there(tmp_path):
    (tmp_path / "launch").touch()
    assert scripts.is_script("no/such/run.sh")
    assert scripts.is_script(str(tmp_path / "launch"))
    assert not scripts.is_script(str(tmp_path / "config.yaml"))
    assert not scripts.is_script("launch:run.sh")
