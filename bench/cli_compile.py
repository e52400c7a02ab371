"""The commands about one launch: compile it, explain a field of it, run what came out."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from miniverl.bench.answer import FILE, FOLDER, answers, json_option, print_json, say, say_problems
from miniverl.bench.cli_inspect import follow, telling, told
from miniverl.bench.exits import Exit
from miniverl.engine.problem import Problem, WrongCall

_REWARD_FUNCTION = click.option(
    "--reward-function", metavar="FILE:NAME", help="A Python function that scores responses."
)
_TRUST = click.option(
    "--trust-reward-code", metavar="SHA256", help="The digest of that file, which lets it run."
)
_PROFILE = click.option("--profile", metavar="NAME", help="Rules to compile by; see the docs.")


@click.command("compile")
@click.argument("words", nargs=-1, metavar="SOURCE [KEY=VALUE]...")
@click.option("--config-path", type=FOLDER, help="A config tree of yours, in place of SOURCE.")
@click.option("--config-name", metavar="NAME", help="The config in it, as Hydra's own option.")
@_PROFILE
@click.option("--bind", multiple=True, metavar="NAME=VALUE", help="Bind an input; may be repeated.")
@_REWARD_FUNCTION
@_TRUST
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable that a script reads.")
@click.option("--arg", multiple=True, metavar="VALUE", help="An argument of a script; in order.")
@click.option("--launch", type=int, metavar="N", help="Which launch of a script; counted from 1.")
@click.option("--gpu", metavar="NAME", help="Say whether it fits there: 4080, cpu, ...")
@click.option(
    "--model-config", multiple=True, metavar="[ROLE=]FILE", help="config.json of a model not bound."
)
@click.option("-o", "--output", type=FILE, help="Write the recipe here.")
@click.option("--report", type=FILE, help="Write the report here.")
@json_option
@answers
def compile_(
    words: tuple[str, ...],
    config_path: Path | None,
    config_name: str | None,
    profile: str | None,
    bind: tuple[str, ...],
    reward_function: str | None,
    trust_reward_code: str | None,
    env: tuple[str, ...],
    arg: tuple[str, ...],
    launch: int | None,
    gpu: str | None,
    model_config: tuple[str, ...],
    output: Path | None,
    report: Path | None,
    as_json: bool,
) -> Exit:
    """Judge every leaf of a launch, and lower it to a recipe.

    SOURCE is a launch script (.sh), a config file (.yaml, .json), hydra:ppo_trainer, launch:grpo or
    workload:NAME; overrides are Hydra's. With --config-path and
    --config-name there is no SOURCE. A script is read and never run: --env and --arg give what it would get from
    outside. --gpu counts memory from the config.json of each bound model, or of --model-config.
    Bindings are model=FOLDER, train=FILE, validation=FILE or none, reward=NAME, compute_dtype=NAME, adapter=FOLDER,
    quantization=nf4, and critic=FOLDER, reward_model=FOLDER, teacher=FOLDER or teacher.KEY=FOLDER where the launch
    has them.
    """
    from miniverl.bench import capacity, compiled_view
    from miniverl.bench.progress import bars
    from miniverl.compiler import scripts
    from miniverl.compiler.lower import compile_launch, compile_script, compile_tree

    bind += _named(reward_function=reward_function, trust_reward_code=trust_reward_code)
    _require_two_files(output, report)
    source, overrides = _source(words, config_path, config_name)
    kind, _, name = source.partition(":")
    is_script = config_path is None and scripts.is_script(source)
    if not is_script:
        _require_nothing_of_a_script(env, arg, launch)
    notes: list[str] = []
    with bars() as progress:
        if is_script:
            variables = scripts.environment(env)
            given = scripts.Given(environment=variables, arguments=arg, number=launch)
            compiled = compile_script(
                Path(source), overrides, given, profile=profile, bindings=bind, progress=progress
            )
        elif config_path is not None:
            compiled = compile_tree(
                config_path, source, overrides, profile=profile, bindings=bind, progress=progress
            )
        elif kind == "workload":
            _require_no_bindings(bind, profile)
            from miniverl.bench.compiling import compile_named

            compiled, notes = compile_named(name, overrides, gpu, progress)
        else:
            compiled = compile_launch(
                source, overrides, profile=profile, bindings=bind, progress=progress
            )
    if gpu is not None:
        compiled = capacity.assessed(compiled, gpu, _configs(model_config))
    compiled = compiled_view.named(compiled, output, report)
    written = compiled_view.write(compiled, output, report)
    if as_json:
        print_json(compiled.report)
    for line in (*compiled_view.lines(compiled), *notes, *capacity.lines(compiled), *written):
        say(line)
    if compiled.status == "accepted":
        return Exit.DONE
    say("")
    say_problems(compiled.problems)
    say(compiled_view.verdict(compiled))
    return Exit.NO


@click.command
@click.argument("field", metavar="FIELD")
@_PROFILE
@json_option
@answers
def explain(field: str, profile: str | None, as_json: bool) -> Exit:
    """Say what a leaf of upstream's config means here."""
    from miniverl.bench.progress import bars
    from miniverl.compiler import explain as explained

    with bars() as progress:
        told = explained.explain(field, profile=profile, progress=progress)
    if as_json:
        print_json(told)
    else:
        say(explained.text(told))
    return Exit.DONE


@click.command
@click.argument("recipe", type=FILE, required=False)
@click.option("--out", type=FOLDER, help="The run folder.")
@click.option("--watch", type=FOLDER, help="Follow the run that another process makes there.")
@click.option("--bindings", type=FILE, help="Unset: bindings.json beside the recipe.")
@click.option("--model", type=FOLDER, help="The model, in place of the bindings'.")
@click.option(
    "--adapter", type=FOLDER, help="The adapter to start from, in place of the bindings'."
)
@click.option("--train", type=FILE, help="The training rows, in place of the bindings'.")
@click.option("--validation", type=FILE, help="The validation rows, in place of the bindings'.")
@click.option(
    "--bind", multiple=True, metavar="NAME=PATH", help="Another input: critic, teacher, ..."
)
@_REWARD_FUNCTION
@_TRUST
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@click.option(
    "--allow-changed",
    multiple=True,
    metavar="NAME",
    help="Go on though NAME differs: torch, python, threads, device, ...",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Unset: a card if there is one.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Events on stdout, a line of JSON each.")
@answers
def run(
    recipe: Path | None,
    out: Path | None,
    watch: Path | None,
    bindings: Path | None,
    model: Path | None,
    adapter: Path | None,
    train: Path | None,
    validation: Path | None,
    bind: tuple[str, ...],
    reward_function: str | None,
    trust_reward_code: str | None,
    resume: bool,
    allow_changed: tuple[str, ...],
    device: str | None,
    threads: int | None,
    as_json: bool,
) -> Exit:
    """Run a recipe, or go on with a run.

    Ctrl-C lets the step end, and saves it; a second one stops at once. Exit code 130 says so.
    """
    if watch is not None:
        if recipe is not None or out is not None:
            raise click.UsageError("--watch looks at a run: it takes no RECIPE and no --out")
        return follow(watch, as_json=as_json)
    if recipe is None:
        raise click.UsageError("Missing argument 'RECIPE'.")
    if out is None:
        raise click.UsageError("Missing option '--out'.")

    from miniverl.bench import live, single_run

    given = _inputs(
        {"model": model, "adapter": adapter, "train": train, "validation": validation}, bind
    )
    with live.shown(say) as shown:
        ended = single_run.run(
            recipe,
            out,
            bindings=bindings,
            given=given,
            reward_function=reward_function,
            trusted=trust_reward_code,
            resume=resume,
            allow_changed=allow_changed,
            device=device,
            threads=threads,
            listen=telling(shown, as_json=as_json),
            write=shown.write,
        )
    return told(
        ended.exit, f"{ended.sentence} The run folder is {os.path.relpath(out)}.", as_json=as_json
    )


def _named(**options: str | None) -> tuple[str, ...]:
    """Bindings that have options of their own."""
    return tuple(f"{name}={value}" for name, value in options.items() if value is not None)


def _configs(texts: tuple[str, ...]) -> dict[str, Path]:
    """config.json files by role; one without a role is the policy's."""
    pairs = (text.partition("=") if "=" in text else ("model", "=", text) for text in texts)
    return {role: Path(path) for role, _, path in pairs}


def _source(
    words: tuple[str, ...], config_path: Path | None, config_name: str | None
) -> tuple[str, tuple[str, ...]]:
    """What to compile, and the overrides: a config by its name needs no SOURCE before them."""
    if config_name is not None:
        name = config_name.removesuffix(".yaml")
        return (name if config_path else f"hydra:{name}"), words
    if config_path is not None:
        raise click.UsageError("--config-path needs --config-name")
    if not words:
        raise click.UsageError("Missing argument 'SOURCE'.")
    return words[0], words[1:]


def _inputs(options: Mapping[str, Path | None], bind: tuple[str, ...]) -> dict[str, Path]:
    """The inputs that the call names, by an option of their own or by --bind."""
    given = {name: path for name, path in options.items() if path is not None}
    wrong = [text for text in bind if not all(text.partition("="))]
    if wrong:
        raise click.UsageError(f"--bind takes NAME=PATH, and got {', '.join(wrong)}")
    return given | {name: Path(path) for name, _, path in (text.partition("=") for text in bind)}


def _require_no_bindings(bind: tuple[str, ...], profile: str | None) -> None:
    """A workload states its inputs and takes the default profile: nothing is left to name."""
    given: dict[str, object] = {"--bind": " ".join(bind) or None, "--profile": profile}
    reason, fix = "a workload says this itself", "Leave out {}, or compile launch:NAME"
    _require_unset(given, reason, fix)


def _require_nothing_of_a_script(
    env: tuple[str, ...], arg: tuple[str, ...], launch: int | None
) -> None:
    given: dict[str, object] = {
        "--env": " ".join(env) or None,
        "--arg": " ".join(arg) or None,
        "--launch": launch,
    }
    _require_unset(given, "only a launch script reads it", "Leave out {}, or give a .sh file")


def _require_two_files(output: Path | None, report: Path | None) -> None:
    """Of two files under one name the later one would stay."""
    if output is None or report is None or os.path.realpath(output) != os.path.realpath(report):
        return
    problem = Problem(
        field="--report",
        value=str(report),
        origin="command line",
        reason="the recipe goes there, by -o",
        fix="Name two files",
    )
    raise WrongCall([problem])


def _require_unset(given: Mapping[str, object], reason: str, fix: str) -> None:
    problems = [
        Problem(
            field=option,
            value=value,
            origin="command line",
            reason=reason,
            fix=fix.format(option),
        )
        for option, value in given.items()
        if value is not None
    ]
    if problems:
        raise WrongCall(problems)
