"""Writes docs/conformance.md: runs the conformance tests, and collects the rows that they record.

    make conformance

A test of this folder records a row through the fixture `record` of conftest.py, once for each function:

    record("policy loss gspo", "verl/trainer/ppo/core_algos.py:1400", cases, max_difference, bound)

`function` is its kind and the name that a recipe gives it ("advantage grpo", "policy loss vanilla",
"aggregation token-mean", "KL estimate k3+"), `upstream` the file and line at the pin of what it is compared with,
`cases` how many inputs, `max_difference` over all of them, in values and gradients, as the fixture
`largest_difference` measures it, `bound` what it may be. The fixture fails where the bound is passed, and where
the row is not committed. Differences are of the machine, so the page has only their order, and no test compares it.
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
TOP = """# Conformance

What each function gives, against the same function of the pinned upstream (verl v0.9.0, commit 483b8a00), run from
its wheel on the same inputs. `make test` runs every comparison again; `make conformance` writes this page.

A difference is |ours - theirs| / max(1, |theirs|), the largest over all cases, values and gradients, as the power of
ten at or above it. The bound is what the test allows.

| function | upstream | cases | difference | bound |
|---|---|---|---|---|
"""


class Collector:
    """Keeps what `record` gives to each test's report. Its name tells `record` that the page is about to change."""

    def __init__(self) -> None:
        self.rows: set[tuple[str, ...]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows |= {row for name, row in report.user_properties if name == "conformance"}


class Registers:
    """A plugin given to pytest.main has no name of its own."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.collector, "conformance-table")


def main() -> int:
    """Exit code: pytest's. The page is written only where every comparison holds."""
    collector = Collector()
    arguments = ["-q", str(HERE), f"--ignore={HERE / 'test_table.py'}"]
    code = pytest.main(arguments, plugins=[Registers(collector)])
    if code == pytest.ExitCode.OK:
        rows = sorted(f"| {' | '.join(row)} |\n" for row in collector.rows)
        beside = PAGE.with_name(f".{PAGE.name}.part")
        beside.write_text(TOP + "".join(rows), encoding="utf-8")
        os.replace(beside, PAGE)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
