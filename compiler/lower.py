"""From a launch to a recipe and a report: compose, judge every leaf, write every recipe path once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from miniverl.compiler import (
    bound_quantization,
    files,
    legacy,
    mapping,
    profiles,
    scripts,
    upstream,
)
from miniverl.compiler import source as sources
from miniverl.compiler.bindings import Bindings, parse
from miniverl.compiler.judge import context_of, judge, problems_of
from miniverl.compiler.leaf import nested
from miniverl.compiler.needs import bound_in_vain, needed_bindings, quantised, required_input
from miniverl.compiler.profiles import Profile
from miniverl.compiler.report import report
from miniverl.compiler.rule import REJECTING, Class, Context, Finding
from miniverl.compiler.rules.switches import has_critic
from miniverl.compiler.rules.trainer import total_steps
from miniverl.compiler.source import Override, Source
from miniverl.compiler.suggest import did_you_mean
from miniverl.compiler.user_tree import UserTree
from miniverl.engine import recipe as recipes
from miniverl.engine.problem import Problem, WrongCall
from miniverl.engine.recipe import Recipe

# What a recipe has only where a leaf asks for it: it holds this unless a rule writes it, or a part of it.
ABSENT: Mapping[str, Any] = {
    "advantage.divides_by_std": None,
    "advantage.gae_lambda": None,
    "advantage.gamma": None,
    "critic": None,
    "distillation": None,
    "group_filter": None,
    "kl_reward": None,
    "policy_loss.arguments": {},
    "rollout_correction": None,
}
_SOURCE = re.compile(r"(hydra|launch):(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """`recipe` is there when the launch is accepted and everything it needs is bound."""

    status: str  # accepted, needs_user_input or rejected
    execution: Mapping[str, Any]
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    recipe: Recipe | None
    lowered: Mapping[str, Any]  # recipe values of an accepted launch, nested, bound or not
    report: Mapping[str, Any]
    paths: Mapping[str, Path | None]  # of the bound inputs, by the names that a recipe has for them


def compile_launch(
    source: str,
    overrides: Sequence[str | Override],
    *,
    profile: str | None = None,
    bindings: Sequence[str] = (),
    progress: upstream.Progress = upstream.quiet,
) -> Compiled:
    """Compile `hydra:CONFIG`, `launch:NAME` with overrides stated on top of its own, or a config file.

    Raises WrongCall for a mistake in the call itself, Refused for a launch that does not compose and for a
    file that cannot be read, and CannotHere when upstream's tree is neither in the cache nor to be had.
    """
    bound = parse(bindings)
    if files.is_file(source) and not _SOURCE.fullmatch(source):
        if overrides:
            raise WrongCall([_overridden(source, str(overrides[0]))])
        return compile_file(Path(source), bound, profile, progress)
    chosen = profiles.named(profile)
    stated = _numbered(overrides)
    config_name, launched = _named(source)
    _covers(chosen, config_name, "command line")
    composed = sources.compose(
        config_name, stated, launched=launched, version=chosen.verl, progress=progress
    )
    return compile_source(composed, bound, chosen)


def compile_tree(
    folder: Path,
    config_name: str,
    overrides: Sequence[str | Override],
    *,
    profile: str | None = None,
    bindings: Sequence[str] = (),
    progress: upstream.Progress = upstream.quiet,
) -> Compiled:
    """Compile a config in a user's own tree, which is found before upstream's. Raises what `compile_launch` does."""
    bound = parse(bindings)
    chosen = profiles.named(profile)
    composed = sources.compose(
        config_name,
        _numbered(overrides),
        user_tree=UserTree.at(folder),
        version=chosen.verl,
        progress=progress,
    )
    return compile_source(composed, bound, chosen)


def compile_file(
    path: Path, bindings: Bindings, profile: str | None, progress: upstream.Progress
) -> Compiled:
    """Compile a whole resolved config, or a documented subset with its `miniverl` block."""
    document = mapping.read(path)
    is_subset = files.has_block(document)
    chosen = profiles.named(profile, "subset" if is_subset else "resolved")
    defaults = sources.defaults(chosen.config_name, version=chosen.verl, progress=progress)
    if not is_subset:
        return compile_source(files.resolved(document, defaults, chosen), bindings, chosen)
    source = files.subset(document, defaults, chosen)
    return compile_source(source, files.bound_by(source, bindings), chosen)


def compile_script(
    path: Path,
    overrides: Sequence[str | Override],
    given: scripts.Given,
    *,
    profile: str | None = None,
    bindings: Sequence[str] = (),
    progress: upstream.Progress = upstream.quiet,
) -> Compiled:
    """Compile the launch of a script, which is read and never run, with overrides stated on top of its own.

    Raises what `compile_launch` does, and WrongCall for a script without a launch that can be compiled.
    """
    bound = parse(bindings)
    chosen = profiles.named(profile)
    launch = scripts.read(path, given)
    _covers(chosen, str(launch.config_name), f"{launch.origin}:{launch.line}")
    stated = _numbered(overrides)
    draft = scripts.compose(launch, stated, version=chosen.verl, progress=progress)
    classes = {one.field: one.classification for one in _judged(draft.source, bound, chosen)}
    return compile_source(scripts.settled(draft, classes), bound, chosen)


def compile_source(source: Source, bindings: Bindings, profile: Profile) -> Compiled:
    """Judge and lower a config; of what the user has yet to give, upstream's own values stand in for it."""
    with_defaults = source.with_defaults
    context = context_of(with_defaults, seen_by_rules(bindings, with_defaults))
    judged = judge(with_defaults, profile.table, context)
    if source.open:
        judged = tuple(_whatever_is_open(judged, _judged(source, bindings, profile), source))
    findings = tuple(_shown(judged, source, profile))
    known = [one for one in findings if one.field not in source.open]
    problems = _of_known_leaves(problems_of(known), source)
    required = source.required if problems else (*source.required, *required_input(context))
    status = "rejected" if problems else "needs_user_input" if required else "accepted"
    needed = needed_bindings(context)
    missing = [name for name in needed if name not in bindings.bound]
    execution = _execution(status, missing, findings)
    recipe = _recipe(judged, context) if execution["status"] == "executable" else None
    warnings = (
        *source.notes,
        *map(_warning, (one for one in judged if one.warning)),
        *bound_in_vain(bindings.bound, context),
        *quantised(bindings.origins, context),
    )
    nothing_set = profiles.nothing_set(profile, source.defaults, parse([]))
    rules_sha256 = profiles.rules_sha256(profile, nothing_set)
    return Compiled(
        status=status,
        execution=execution,
        findings=findings,
        problems=(*problems, *required),
        warnings=warnings,
        recipe=recipe,
        lowered=nested(_values(judged, context)) if status == "accepted" else {},
        report=report(
            source=source,
            profile=profile,
            rules_sha256=rules_sha256,
            profile_identity=profiles.identity(profile, rules_sha256),
            bindings=bindings,
            findings=findings,
            problems=problems,
            required_input=required,
            warnings=warnings,
            semantics=status,
            execution=execution,
            recipe=recipe,
        ),
        paths=_paths(bindings, needed, context),
    )


def _judged(source: Source, bindings: Bindings, profile: Profile) -> tuple[Finding, ...]:
    return judge(source, profile.table, context_of(source, seen_by_rules(bindings, source)))


def _whatever_is_open(
    with_defaults: Sequence[Finding], with_placeholders: Sequence[Finding], source: Source
) -> Iterator[Finding]:
    """A leaf is rejected where it is both ways: then it is so whatever the open leaves will hold."""
    by_field = {one.field: one for one in with_defaults}
    for finding in with_placeholders:
        otherwise = by_field.get(finding.field, finding)
        if finding.field in source.open:
            yield replace(otherwise, value=finding.value, target=None, lowered=None)
        else:
            yield finding if otherwise.classification in REJECTING else otherwise


def _shown(judged: Sequence[Finding], source: Source, profile: Profile) -> Iterator[Finding]:
    """The findings of a report: of a subset, those of what it states, and what else stands in its way."""
    required = {problem.field for problem in source.required}
    for finding in judged:
        is_stated = source.stated is None or finding.field in source.stated
        if is_stated and not profile.admits(finding.field):
            yield replace(
                finding,
                classification=Class.UNSUPPORTED,
                reason="no leaf of the documented subset",
                fix=_outside(finding.field, source),
            )
        elif is_stated or (finding.classification in REJECTING and finding.field not in required):
            yield finding


def _outside(field: str, source: Source) -> str:
    if old := legacy.fix(field):
        return old
    if field in source.defaults:
        return f"Remove {field}, or compile the launch itself as hydra: with overrides"
    return did_you_mean(field, source.leaves.keys() - {field}, f"Remove {field}")


def written(findings: Sequence[Finding]) -> dict[str, Any]:
    """The lowered values by recipe path; each path has one writer, and none lies under another."""
    values: dict[str, Any] = {}
    writers: dict[str, str] = {}
    for finding in findings:
        if finding.target is None:
            continue
        assert finding.target not in writers, (
            f"{finding.field} and {writers[finding.target]} both write {finding.target}"
        )
        values[finding.target] = finding.lowered
        writers[finding.target] = finding.field
    for path in values:
        above = [other for other in values if path.startswith(f"{other}.")]
        assert not above, f"{path} lies under {above[0]}, which is written whole"
    return values


def _values(findings: Sequence[Finding], context: Context) -> dict[str, Any]:
    """What leaves write, and what is bound and no leaf writes."""
    return written(findings) | bound_quantization.values(context.bindings["quantised"])


def _recipe(findings: Sequence[Finding], context: Context) -> Recipe:
    values = _values(findings, context)
    values["schema_version"] = recipes.SCHEMA_VERSION
    values["learning_rate_schedule.total_steps"] = context.bindings["total_steps"]
    if has_critic(context):
        values["critic.learning_rate_schedule.total_steps"] = context.bindings["total_steps"]
    for path, absent in ABSENT.items():
        if not any(one == path or one.startswith(f"{path}.") for one in values):
            values[path] = absent
    return recipes.from_dict(nested(values), "the compiled launch")


def _paths(bindings: Bindings, needed: Sequence[str], context: Context) -> dict[str, Path | None]:
    """Where the inputs lie; a critic that shares the policy's weights comes from the policy's folder."""
    bound = bindings.bound
    names = dict.fromkeys(("model", "train", "validation", *needed))
    held = {name: bound.get(name) for name in names if name != "reward"}
    if has_critic(context):
        held["critic"] = bindings.critic or bindings.model
    return {name: one.path if one else None for name, one in held.items()}


def seen_by_rules(bindings: Bindings, source: Source) -> dict[str, Any]:
    """The bindings as rules see them, with what follows from them and the launch together."""
    leaves = {**source.defaults, **source.leaves}
    seen = bindings.for_rules()
    names_no_rows = not leaves["data.val_files"] and bindings.validation is None
    return {
        **seen,
        "without_validation": bindings.without_validation or names_no_rows,
        "total_steps": total_steps(leaves, seen["train_rows"]),
    }


def _of_known_leaves(problems: Sequence[Problem], source: Source) -> tuple[Problem, ...]:
    """Another model engine brings a hundred other leaves; the engine alone is the problem then."""
    if source.leaves.get("model_engine") == source.defaults["model_engine"]:
        return tuple(problems)
    known = source.leaves.keys() & source.defaults.keys()
    return tuple(problem for problem in problems if problem.field in known)


def _warning(finding: Finding) -> str:
    text = str(finding.warning)
    return text if finding.field in text else f"{finding.field}: {text}"


def _execution(status: str, missing: Sequence[str], findings: Sequence[Finding]) -> dict[str, Any]:
    """What is accepted and yet not run here leaves nothing to assess, whatever is bound."""
    if status != "accepted":
        return {"status": "not_assessed"}
    not_run = [
        {"field": one.field, "reason": one.not_run, "value": one.value}
        for one in findings
        if one.not_run
    ]
    if not_run:
        return {"status": "not_assessed", "missing": list(missing), "not_run": not_run}
    if missing:
        return {"status": "requires_bindings", "missing": list(missing)}
    return {"status": "executable"}


def _numbered(overrides: Sequence[str | Override]) -> tuple[Override, ...]:
    return tuple(
        one if isinstance(one, Override) else Override(one, f"override {number}")
        for number, one in enumerate(overrides, 1)
    )


def _named(source: str) -> tuple[str, tuple[Override, ...]]:
    """Config name and the launch's own overrides of `hydra:CONFIG` or `launch:NAME`."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        problem = Problem(
            field="source",
            value=source,
            origin="command line",
            reason="not a source that can be compiled",
            fix="Give hydra:ppo_trainer followed by overrides, launch:grpo, or a .sh, .yaml or .json file",
        )
        raise WrongCall([problem])
    kind, name = match.groups()
    if kind == "hydra":
        return name, ()
    launch = sources.launch(name)
    return launch.config_name, sources.numbered(launch.overrides, f"launches/{name}.yaml override")


def _overridden(source: str, override: str) -> Problem:
    return Problem(
        field="source",
        value=source,
        origin="command line",
        reason=f"a file states a whole config, and {override} comes on top of it",
        fix="Change it in the file, or compile hydra:ppo_trainer with overrides",
    )


def _covers(profile: Profile, config_name: str, origin: str) -> None:
    if config_name == profile.config_name:
        return
    problem = Problem(
        field="config name",
        value=config_name,
        origin=origin,
        reason=f"profile {profile.name} covers {profile.config_name} only",
        fix=f"Compile hydra:{profile.config_name}",
    )
    raise WrongCall([problem])
