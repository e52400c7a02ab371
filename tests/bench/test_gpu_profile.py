"""GPU profiles: documents that are valid, which card each takes, and what is computed in on it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import compiling, obstacle, stack
from miniverl.bench.document import load
from miniverl.bench.gpu import Card, Found, choose, default_workloads
from miniverl.bench.gpu_profile import Limits, parse, profiles
from miniverl.bench.precision import precision
from miniverl.bench.workload import Contract, names
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import WrongCall

DOCUMENTS = Path(__file__).parents[2] / "bench" / "gpus"
GIB = 1 << 30
# What the driver calls a card and says of its memory in GiB -> its profile. Figures that such machines have shown.
CARDS = {
    ("NVIDIA GeForce RTX 3060", 12.0): "3060-12",
    ("NVIDIA GeForce RTX 3060", 8.0): "cuda",
    ("NVIDIA GeForce RTX 3060 Ti", 12.0): "cuda",
    ("NVIDIA GeForce RTX 3090", 24.0): "3090",
    ("NVIDIA GeForce RTX 4070", 11.99): "4070",
    ("NVIDIA GeForce RTX 4080", 15.99): "4080",
    ("NVIDIA GeForce RTX 4090", 23.99): "4090",
    ("NVIDIA GeForce RTX 4090 D", 23.99): "cuda",
    ("NVIDIA GeForce RTX 5080", 15.92): "5080",
    ("NVIDIA GeForce RTX 5090", 31.84): "5090",
    ("NVIDIA A100-SXM4-40GB", 40.0): "a100-40",
    ("NVIDIA A100-PCIE-40GB", 39.39): "a100-40",
    ("NVIDIA A100-SXM4-80GB", 80.0): "a100-80",
    ("NVIDIA H100 80GB HBM3", 79.65): "h100",
    ("NVIDIA H100 PCIe", 79.65): "cuda",
    ("NVIDIA H200", 140.4): "h200",
    ("NVIDIA L4", 22.49): "l4",
    ("Tesla T4", 15.0): "t4",
}


def found(name: str, memory_gib: float) -> Found:
    card = Card(
        index=0,
        name=name,
        memory_bytes=int(memory_gib * GIB),
        uuid_sha256="ab" * 32,
        facts={},
    )
    return Found(cards=(card,), driver="596.49", driver_cuda="13.1", torch="2.13.0", why_none=None)


@pytest.mark.parametrize("card", CARDS, ids=str)
def test_a_card_is_known_by_its_whole_name_and_its_memory(card: tuple[str, float]) -> None:
    assert choose(None, False, found(*card)).profile.name == CARDS[card]


def test_every_profile_names_a_card_above_and_stacks_and_workloads_that_there_are() -> None:
    of_cards = {name for name, profile in profiles().items() if profile.memory_gib is not None}
    assert of_cards == set(CARDS.values()) - {"cuda"}
    for profile in profiles().values():
        assert set(profile.workloads) <= set(names()), profile.name
        assert profile.stack is None or stack.minimum_driver(profile.stack), profile.name


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        *((name, "bfloat16", "natively") for name in sorted(set(CARDS.values()) - {"cuda", "t4"})),
        ("t4", "float32", "compute capability 7.5 has no bfloat16, and float16 would need its"),
        ("cuda", "float32", "the card's compute capability is not known"),
        ("cpu", "float32", "few processors multiply bfloat16 faster"),
    ],
)
def test_the_type_of_products_follows_from_the_card(name: str, dtype: str, reason: str) -> None:
    profile = profiles()[name]
    decided = precision(profile.device, profile.compute_capability)
    assert decided.compute == dtype
    assert reason in decided.reason
    assert dtype in decided.sentence
    if profile.data_sheet is not None:
        assert (profile.data_sheet.peak_teraflops.bfloat16 is None) == (dtype == "float32")


def test_what_a_card_says_of_itself_goes_before_its_profile() -> None:
    chosen = choose(None, False, found("NVIDIA B200", 180))
    assert chosen.card is not None
    assert chosen.compute_capability is None
    told = replace(chosen, card=replace(chosen.card, facts={"compute_capability": "10.0"}))
    assert told.compute_capability == "10.0"


def test_a_profile_has_workloads_of_its_own_where_none_is_named() -> None:
    assert default_workloads("cpu") == ("smollm2-grpo",)
    on_a_card = default_workloads("4080")
    assert on_a_card[:2] == ("qwen3-0.6b-opd-k1", "qwen3-0.6b-grpo")
    assert {name.partition("-")[0] for name in on_a_card[2:]} == {"smollm2"}


@pytest.fixture
def plain() -> dict[str, Any]:
    return load(DOCUMENTS / "4080.yaml")


def problems(plain: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(WrongCall) as caught:
        parse(plain, "mine.yaml")
    assert {problem.origin for problem in caught.value.problems} == {"mine.yaml"}
    return {problem.field: problem.reason for problem in caught.value.problems}


def test_every_problem_of_a_profile_is_told_at_once(plain: dict[str, Any]) -> None:
    plain |= {"memory_gib": -16.0, "compute_capability": "Ada", "device_name_pattern": "RTX ("}
    plain["data_sheet"]["memory_gb_per_second"] = 0.0
    plain["workloads"] = []
    assert problems(plain) == {
        "gpu.memory_gib": "expected a positive number",
        "gpu.data_sheet.memory_gb_per_second": "expected a positive number",
        "gpu.compute_capability": "expected a version such as 8.9",
        "gpu.device_name_pattern": "not a pattern: missing ), unterminated subpattern at position 4",
        "gpu.limits.reserved_gib": "the card has -16 GiB, and CUDA's context needs some of it",
        "gpu.workloads": "expected at least one",
    }


def test_a_profile_of_a_card_states_all_of_it(plain: dict[str, Any]) -> None:
    plain |= {"data_sheet": None, "limits": None, "bandwith": 716.8}
    assert problems(plain) == {"gpu.bandwith": "unknown field"}
    del plain["bandwith"]
    assert problems(plain) == {
        "gpu.data_sheet": "stated for a card, as the others are",
        "gpu.limits": "stated for a card, as the others are",
    }


def test_a_card_that_is_too_small_is_told_the_smallest_change_that_fits(tmp_path: Path) -> None:
    compiled, _ = compiling.compile_named("tiny-opd-k1", (), "4080", quiet)
    chosen = choose("4080", False, found("NVIDIA GeForce RTX 4080", 16.0))
    room = Contract(device_hours=1, peak_reserved_gib=1, peak_rss_gib=1, disk_gib=0.001)
    assert obstacle.of_room(compiled, chosen, room, tmp_path) is None

    limits = replace(chosen.profile, limits=Limits(reserved_gib=0.15))
    small = replace(chosen, profile=limits)
    blocked = obstacle.of_room(compiled, small, room, tmp_path)
    assert blocked is not None
    assert blocked.code == "does_not_fit"
    (problem,) = blocked.problems
    assert problem.origin == "NVIDIA GeForce RTX 4080"
    assert re.fullmatch(
        r"The update phase takes \d\.\d GiB, and 0\.7 GiB are there", problem.reason
    )
    assert problem.fix.startswith("With actor_rollout_ref.actor.ppo_max_token_len_per_gpu=")


def test_a_stack_that_is_too_old_for_the_card_blocks(plain: dict[str, Any]) -> None:
    here = found("NVIDIA GeForce RTX 5080", 15.92)
    running = stack.Stack(name="cu126", lock_sha256=None, matches=None, differences=())
    blocked = obstacle.of_driver(running, choose(None, False, here), here)
    assert blocked is not None
    assert blocked.code == "stack_too_old"
    assert "needs 12.8" in blocked.reason
