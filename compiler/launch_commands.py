"""Which program a command line starts, behind whatever wraps it, and what it hands to Hydra."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from miniverl.compiler.shell_values import Text, text, without_start

# Upstream's programs that `@hydra.main` starts, with the config that each names
# (verl/trainer/main_ppo.py:167, sft_trainer.py:460, sft_trainer_ray.py:388, main_eval.py:41,
# main_generation_server.py:122, experimental/fully_async_policy/fully_async_main.py:222,
# experimental/one_step_off_policy/main_ppo.py:109 at v0.9.0).
MAINS: Mapping[str, str] = {
    "verl.trainer.main_ppo": "ppo_trainer",
    "verl.trainer.sft_trainer": "sft_trainer_engine",
    "verl.trainer.sft_trainer_ray": "sft_trainer_engine",
    "verl.trainer.main_eval": "evaluation",
    "verl.trainer.main_generation_server": "ppo_trainer",
    "verl.experimental.fully_async_policy.fully_async_main": "fully_async_ppo_trainer",
    "verl.experimental.one_step_off_policy.main_ppo": "one_step_off_ppo_trainer",
}
# They start one process per device; upstream's reinforcement learning starts its own through Ray.
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
_LAUNCHER_FLAGS = frozenset(
    {"launch", "--standalone", "--multi_gpu", "--multi-gpu", "--use_deepspeed", "--use_fsdp"}
)
_ELSEWHERE = frozenset({"ssh", "pdsh", "tmux", "screen", "su", "docker", "podman", "kubectl"})
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?$")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh$")
_MODULE_FLAG = re.compile(r"-[bBdEiIOqsSuvx]*m$")
_ENVIRONMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_SCRIPT = re.compile(r"(?:.*/)?((?:verl|recipe)/(?:\w+/)*\w+)\.py$")
OVERRIDE = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w@]*(?:[./][\w@-]+)+=")

_VALUES = {
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-dir": "config_dir",
    "-cd": "config_dir",
    "--package": "package",
    "-p": "package",
    "--experimental-rerun": "experimental_rerun",
    "--cfg": "cfg",
    "-c": "cfg",
    "--info": "info",
    "-i": "info",
}
_FLAGS = {
    "--help": "help",
    "-h": "help",
    "--hydra-help": "hydra_help",
    "--version": "version",
    "--resolve": "resolve",
    "--run": "run",
    "-r": "run",
    "--multirun": "multirun",
    "-m": "multirun",
    "--shell-completion": "shell_completion",
    "-sc": "shell_completion",
}


@dataclass(frozen=True, slots=True)
class Python:
    """`entry` is a dotted module, or the path of a script that is none of upstream's."""

    entry: Text
    arguments: tuple[Text, ...]
    wrappers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShellText:
    """Commands that another shell gets as a string, and the variables it gets with them."""

    source: Text
    arguments: tuple[Text, ...]
    assigned: Mapping[str, Text]
    wrappers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShellFile:
    """Another script that is run."""

    path: Text


Program = Python | ShellText | ShellFile


@dataclass(slots=True)
class Arguments:
    """A Hydra command line: overrides in order, options by name, and what is neither."""

    overrides: list[Text] = field(default_factory=list)
    options: dict[str, Text] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    strange: list[Text] = field(default_factory=list)


def program(words: Sequence[Text], folder: Text | None) -> Program | None:
    """The program that a command starts; None when it is none that could be a launch."""
    known = [word.known or "" for word in words]
    start = known.index("--") + 1 if known[:1] == ["ray"] and "--" in known else 0
    for at in range(start, len(words)):
        wrappers = tuple(posixpath.basename(one) for one in known[:at] if one)
        name = posixpath.basename(known[at])
        if at == 0 and words[0].unknowns and OVERRIDE.match("".join(known[1:2])):
            return Python(words[0], tuple(words[1:]), ())
        if _PYTHON.match(known[at]) or (at == 0 and words[0].unknowns):
            found = _python(words[at + 1 :], folder, wrappers)
            if found is not None or words[0].known is not None:
                return found
        elif name in LAUNCHERS:
            return _launched(words[at + 1 :], folder, (*wrappers, name))
        elif _SHELL.match(known[at]):
            return _shell(words, at, wrappers)
    for word in words[1:]:
        if known[0] in _ELSEWHERE and re.search(r"\bpython\d?\S* .*(verl|main_)", word.shown):
            return ShellText(word, (), {}, (known[0],))
    return None


def arguments(words: Sequence[Text]) -> Arguments:
    """Reads what stands behind the program as Hydra's own parser does."""
    read = Arguments()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        start = word.pieces[0] if word.pieces and isinstance(word.pieces[0], str) else ""
        name, equals, _ = start.partition("=")
        if not start.startswith("-") or start == "-":
            read.overrides.append(word)
        elif name in _VALUES and equals:
            read.options[_VALUES[name]] = without_start(word, len(name) + 1)
        elif start in _VALUES and rest:
            read.options[_VALUES[start]] = rest.pop(0)
        elif start in _FLAGS:
            read.flags.add(_FLAGS[start])
        else:
            read.strange.append(word)
    return read


def _python(words: Sequence[Text], folder: Text | None, wrappers: tuple[str, ...]) -> Python | None:
    """What `python words` runs; None for `-c`, and for Python alone."""
    at = 0
    while at < len(words):
        option = words[at].known or ""
        if _MODULE_FLAG.match(option):
            return _module(words[at + 1 :], folder, wrappers)
        if option.startswith("-m") and len(option) > 2:
            return _module([without_start(words[at], 2), *words[at + 1 :]], folder, wrappers)
        if option in ("-W", "-X"):
            at += 2
        elif option == "-c" or option == "-":
            return None
        elif option.startswith("-"):
            at += 1
        else:
            return Python(_entry(words[at], folder), tuple(words[at + 1 :]), wrappers)
    return None


def _module(words: Sequence[Text], folder: Text | None, wrappers: tuple[str, ...]) -> Python | None:
    if not words:
        return None
    name = words[0].known or ""
    if name in _LAUNCHER_MODULES:
        return _launched(words[1:], folder, (*wrappers, name))
    if name and not name.startswith("verl."):
        # A debugger or a profiler that runs another module.
        for at, word in enumerate(words[:-1]):
            if word.known == "-m" and (words[at + 1].known or "").startswith("verl."):
                return Python(words[at + 1], tuple(words[at + 2 :]), (*wrappers, name))
    return Python(words[0], tuple(words[1:]), wrappers)


def _launched(
    words: Sequence[Text], folder: Text | None, wrappers: tuple[str, ...]
) -> Python | None:
    """What `torchrun words` runs."""
    at = 0
    while at < len(words):
        option = words[at].known or ""
        if option in ("-m", "--module"):
            return _module(words[at + 1 :], folder, wrappers)
        if option in _LAUNCHER_FLAGS or (option.startswith("-") and "=" in words[at].shown):
            at += 1
        elif words[at].shown.startswith("-"):
            following = words[at + 1].known or "" if at + 1 < len(words) else ""
            at += 1 if following.startswith("-") or following.endswith(".py") else 2
        else:
            return Python(_entry(words[at], folder), tuple(words[at + 1 :]), wrappers)
    return None


def _shell(words: Sequence[Text], at: int, wrappers: tuple[str, ...]) -> Program | None:
    """What `bash words` reads: a string after -c, else a file."""
    assigned = {
        found[1]: without_start(word, found.end())
        for word in words[:at]
        if word.pieces and (found := _ENVIRONMENT.match(word.shown)) and _starts_known(word, found)
    }
    rest = list(words[at + 1 :])
    while rest:
        option = rest[0].known or ""
        if re.match(r"-[a-zA-Z]*c$", option) and len(rest) > 1:
            return ShellText(rest[1], tuple(rest[3:]), assigned, wrappers)
        if not option.startswith(("-", "+")) or option == "-":
            return ShellFile(rest[0])
        rest = rest[2:] if option in ("-o", "-O") else rest[1:]
    return None


def _starts_known(word: Text, found: re.Match[str]) -> bool:
    return isinstance(word.pieces[0], str) and len(word.pieces[0]) >= found.end()


def _entry(path: Text, folder: Text | None) -> Text:
    """A script's path as upstream's dotted module, when it is one of upstream's."""
    whole = path.shown
    if folder is not None and not whole.startswith(("/", "$")):
        whole = f"{folder.shown}/{whole}"
    found = _SCRIPT.match(posixpath.normpath(whole))
    return text(found[1].replace("/", "."), path.line) if found else path
