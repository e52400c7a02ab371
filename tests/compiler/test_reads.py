"""Reads and function digests come from the syntax alone, whatever the layout of the text."""

import ast

from miniverl.compiler.reads import function_at, functions, reads, reads_of

TEXT = '''
"""Docs."""
import os

SIZE = 3


class Worker:
    def step(self, config):
        lr = config.optim.lr
        n = config.rollout.get("n", 1)
        return getattr(config, "seed"), config["data"]["shuffle"], OmegaConf.select(config, "a.b.c")


def plain(x):
    return x + 1
'''


def found(text: str = TEXT) -> set[tuple[str, str, str]]:
    return {(one.function, one.owner, one.name) for one in reads("f.py", ast.parse(text))}


def test_attributes_items_gets_and_selects_are_reads_with_the_name_they_are_read_from():
    assert {
        ("Worker.step", "optim", "lr"),
        ("Worker.step", "rollout", "n"),
        ("Worker.step", "config", "seed"),
        ("Worker.step", "data", "shuffle"),
        ("Worker.step", "b", "c"),
    } <= found()


def test_what_is_written_to_is_not_read():
    assert ("<module>", "config", "lr") not in found("config.lr = 1")
    assert ("<module>", "config", "lr") in found("x = config.lr")


def test_a_read_from_another_section_is_not_of_this_leaf():
    by_name = {
        "lr": list(
            reads("f.py", ast.parse("a = critic_cfg.optim.lr\nb = engine.lr\nc = config.lr"))
        )
    }
    of = reads_of("actor.optim.lr", {"actor", "optim", "engine"}, by_name)
    assert {read.text for read in of if read.name == "lr"} == {"critic_cfg.optim.lr", "config.lr"}


def test_a_digest_is_of_the_syntax_without_docstrings_comments_and_layout():
    same = TEXT.replace("return x + 1", '"""Adds."""\n    # one\n    return (x\n        + 1)')
    before, after = functions(ast.parse(TEXT)), functions(ast.parse(same))
    assert before == after
    other = functions(ast.parse(TEXT.replace("x + 1", "x + 2").replace("SIZE = 3", "SIZE = 4")))
    assert {name for name in before if before[name] != other[name]} == {"plain", "<module>"}


def test_a_line_is_of_the_innermost_function_around_it():
    module = ast.parse(TEXT)
    assert function_at(module, 10) == "Worker.step"
    assert function_at(module, 16) == "plain"
    assert function_at(module, 5) == "<module>"
