"""Every part that is wanted, in order, into one JSON document: the machine, the answers, the ratios."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from miniverl.bench import environment
from miniverl.bench.peers import judge, setting
from miniverl.bench.peers.parts import PARTS, plain
from miniverl.bench.peers.setting import Setting


def measured(names: Sequence[str], at: Setting) -> dict[str, Any]:
    """Raises CannotHere where a part needs peers that are not installed."""
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
        "parts": parts,
        "ratios": [each.plain() for each in judge.ratios(parts)],
    }
