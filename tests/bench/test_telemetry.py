"""Memory of a process tree, as the kernel tells it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from miniverl.bench import telemetry

MIB = 1 << 20

# A parent that holds 32 MiB, with a child of a thread of its own that holds 64 MiB.
TREE = """
import subprocess, sys, threading
held = bytearray(b"x" * (32 << 20))
hold = "held = bytearray(b'x' * (64 << 20)); print('ready', flush=True); input()"
def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
thread = threading.Thread(target=start)
thread.start(); thread.join()
child.stdout.readline()
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.fixture
def tree() -> Iterator[tuple[int, int]]:
    """Process ids of a parent and its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    yield process.pid, int(process.stdout.readline())
    process.communicate("\n")


def test_a_tree_is_a_process_and_its_descendants(tree: tuple[int, int]) -> None:
    assert telemetry.process_tree(tree[0]) == list(tree)
    assert os.getpid() not in telemetry.process_tree(tree[0])


def test_resident_memory_is_that_of_the_whole_tree(tree: tuple[int, int]) -> None:
    parent, child = tree
    whole, alone = telemetry.rss_bytes(parent), telemetry.rss_bytes(child)
    assert whole is not None
    assert alone is not None
    assert 64 * MIB < alone < whole
    assert whole - alone > 32 * MIB


def test_the_peak_is_at_least_what_is_held_now(tree: tuple[int, int]) -> None:
    now, peak = telemetry.rss_bytes(tree[1]), telemetry.peak_rss_bytes(tree[1])
    assert now is not None
    assert peak is not None
    assert peak >= now


def test_a_process_that_is_gone_holds_nothing_known() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert telemetry.process_tree(ended.pid) == []
    assert telemetry.rss_bytes(ended.pid) is None
    assert telemetry.peak_rss_bytes(ended.pid) is None


def test_a_process_that_nobody_has_waited_for_holds_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert ended.stdout
    ended.stdout.read()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert telemetry.rss_bytes(ended.pid) is None
    ended.communicate()
