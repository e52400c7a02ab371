"""Every part that is wanted, in order, into one JSON document: the machine, the answers, the ratios.

Parts take minutes, so the document is whole after each: where a later one breaks off, the earlier ones are there.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from miniverl.bench import environment
from miniverl.bench.peers import judge, setting
from miniverl.bench.peers.parts import PARTS, plain
from miniverl.bench.peers.setting import Setting


def measured(names: Sequence[str], at: Setting) -> Iterator[dict[str, Any]]:
    """The document after each part. Raises CannotHere where a part needs peers that are not installed."""
    has_peers = any(PARTS[name].needs_peers for name in names)
    peers = setting.peers_packages(at.peers_python) if has_peers else {}
    parts: dict[str, Any] = {}
    for name in names:
        part = PARTS[name]
        at.tell(part.title)
        rounds = part.rounds if at.rounds is None else at.rounds
        load, started = os.getloadavg()[0], time.perf_counter()
        cells = plain(part.measure(at, rounds))
        parts[name] = {
            "title": part.title,
            "rounds": rounds,
            "load_before": round(load, 2),
            "seconds": round(time.perf_counter() - started, 1),
            "cells": cells,
        }
        yield _document(parts, at, peers)


def _document(parts: dict[str, Any], at: Setting, peers: Mapping[str, str]) -> dict[str, Any]:
    checkout = environment.checkout()
    return {
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {
            "cpu": environment.cpu_model(),
            "cores": os.cpu_count(),
            "memory_gib": round(environment.memory_bytes() / 2**30, 1),
            "threads": at.threads,
        },
        "versions": {
            "miniverl": version("miniverl"),
            "torch": version("torch"),
            "peers": dict(peers),
        },
        "code": {
            "commit": checkout.commit,
            "is_dirty": checkout.is_dirty,
            "sha256": environment.code_sha256(),
        },
        "parts": dict(parts),
        "ratios": [each.plain() for each in judge.ratios(parts)],
    }
