"""Which device a run uses; the driver is a stub in C behind the real bindings, in a process of its own.

Without a C compiler, the stub's twin in Python stands in the place of the bindings.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miniverl.bench import measure, telemetry
from miniverl.bench.gpu import Card, Found, choose
from miniverl.bench.gpu_profile import profiles
from miniverl.bench.nvml import Status
from miniverl.engine.problem import CannotHere, Problem, WrongCall

GIB = 1 << 30
CARD = Card(
    index=0,
    name="NVIDIA GeForce RTX 4080",
    memory_bytes=17_171_480_576,
    uuid_sha256="ab" * 32,
    facts={},
)
WITH_CARD = Found(cards=(CARD,), driver="596.49", driver_cuda="13.1", torch="2.13.0", why_none=None)
WITHOUT = Found(
    cards=(),
    driver=None,
    driver_cuda=None,
    torch="2.13.0+cpu",
    why_none="it finds no NVIDIA driver library",
)


def _having(name: str, memory_gib: float = 80) -> Found:
    card = replace(CARD, name=name, memory_bytes=int(memory_gib * GIB))
    return replace(WITH_CARD, cards=(card,))


def _refused(name: str, found: Found) -> Problem:
    with pytest.raises(CannotHere) as caught:
        choose(name, False, found)
    (problem,) = caught.value.problems
    assert (problem.field, problem.value, problem.origin) == ("gpu", name, "--gpu")
    return problem


def test_without_a_card_the_cpu_is_chosen_silently() -> None:
    chosen = choose(None, False, WITHOUT)
    assert (chosen.profile.name, chosen.card, chosen.note) == ("cpu", None, None)
    assert chosen.is_official


def test_a_known_card_is_chosen_by_its_own_profile() -> None:
    chosen = choose(None, False, WITH_CARD)
    assert (chosen.profile.name, chosen.card) == ("4080", CARD)


def test_another_card_is_chosen_by_the_general_profile() -> None:
    assert choose(None, False, _having("NVIDIA B200", 180)).profile.name == "cuda"


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 4080 SUPER", "NVIDIA GeForce RTX 4080 Laptop GPU"]
)
def test_a_namesake_is_another_card(name: str) -> None:
    assert choose(None, False, _having(name, 16)).profile.name == "cuda"


def test_a_slice_of_a_card_is_another_card() -> None:
    assert choose(None, False, _having("NVIDIA GeForce RTX 4080", 8)).profile.name == "cuda"


def test_a_card_without_cuda_in_torch_is_left_with_a_note() -> None:
    chosen = choose(None, False, replace(WITH_CARD, torch="2.13.0+cpu"))
    assert chosen.profile.name == "cpu"
    assert chosen.note == (
        "Using the CPU: this machine has NVIDIA GeForce RTX 4080, but torch 2.13.0+cpu has no CUDA"
    )


def test_a_card_that_is_not_here_is_refused_in_a_sentence() -> None:
    problem = _refused("4080", WITHOUT)
    assert problem.reason == (
        "GPU profile 4080 needs an NVIDIA GeForce RTX 4080, and this machine has "
        "no NVIDIA card (it finds no NVIDIA driver library)"
    )
    assert problem.fix == "Run it on a machine with that card, or here with --gpu cpu"


def test_another_card_is_refused_in_a_sentence() -> None:
    problem = _refused("4080", _having("NVIDIA H200", 140))
    assert problem.reason == (
        "GPU profile 4080 is for an NVIDIA GeForce RTX 4080, and this machine has NVIDIA H200"
    )
    assert problem.fix == "Take --gpu h200, or --as-is for an unofficial record"


def test_another_card_is_taken_as_it_is_and_unofficial() -> None:
    chosen = choose("4080", True, _having("NVIDIA H200"))
    assert (chosen.profile.name, chosen.is_official) == ("4080", False)
    assert chosen.card is not None
    assert chosen.card.name == "NVIDIA H200"


def test_as_is_needs_a_card_all_the_same() -> None:
    with pytest.raises(CannotHere):
        choose("4080", True, WITHOUT)


def test_a_card_without_cuda_in_torch_is_refused_for_the_stack() -> None:
    problem = _refused("cuda", replace(WITH_CARD, torch="2.13.0+cpu"))
    assert "torch 2.13.0+cpu has no CUDA" in problem.reason
    assert problem.fix == "Install a CUDA stack: MINIVERL_STACK=cu130 make setup"


@pytest.mark.parametrize(
    ("version", "has_cuda"),
    [
        ("2.13.0", True),
        ("2.13.0+cu130", True),
        ("2.13.0+cpu", False),
        ("2.13.0+rocm6.4", False),
        (None, False),
    ],
)
def test_the_build_of_torch_is_read_from_its_version(version: str | None, has_cuda: bool) -> None:
    assert replace(WITH_CARD, torch=version).torch_has_cuda is has_cuda


def test_an_unknown_profile_suggests_the_nearest() -> None:
    with pytest.raises(WrongCall) as caught:
        choose("408", False, WITHOUT)
    assert caught.value.problems[0].fix == "Did you mean 4080?"


def test_profiles_of_one_card_come_before_the_general_one() -> None:
    cuda = [name for name, profile in profiles().items() if profile.device == "cuda"]
    assert cuda[-1] == "cuda"
    assert len(cuda) == 14


READ = """
import json, os
from dataclasses import asdict
from miniverl.bench import gpu, nvml, telemetry
found = gpu.detect()
answer = {"found": asdict(found)}
with nvml.opened() as closed:
    if closed is None and found.cards:
        answer["readings"] = dict(telemetry.card_readings(0, [os.getpid()]))
print(json.dumps(answer))
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return Path(__file__).with_name("nvml_twin") / "pynvml.py"
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def _path_to(library: Path) -> dict[str, str]:
    """The variable that leads a process to it."""
    name = "PYTHONPATH" if library.suffix == ".py" else "LD_LIBRARY_PATH"
    return {name: str(library.parent)}


def _read(library: Path, **variables: str) -> dict[str, Any]:
    """What a process sees that finds the stub where it looks for the driver's library."""
    environment = {**os.environ, **_path_to(library), **variables}
    # The process names itself to the stub, which lists it among those that use the card.
    script = "import os; os.environ['NVML_STUB_PID'] = str(os.getpid())\n" + READ
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, check=True
    )
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


def test_a_card_is_found_with_driver_and_memory(stub: Path) -> None:
    found = _read(stub)["found"]
    assert (found["driver"], found["driver_cuda"], found["why_none"]) == ("596.49", "13.1", None)
    (card,) = found["cards"]
    assert card["name"] == "NVIDIA GeForce RTX 4080"
    assert card["memory_bytes"] == 17_171_480_576
    assert card["facts"]["power_limit_watts"] == 320.0
    assert card["facts"]["ecc_mode"] == Status.NOT_SUPPORTED


def test_bindings_and_drivers_that_are_older_than_a_question_say_so(stub: Path) -> None:
    (card,) = _read(stub)["found"]["cards"]
    (twins,) = _read(Path(__file__).with_name("nvml_twin") / "pynvml.py")["found"]["cards"]
    assert card["facts"]["max_pcie_width"] == Status.FUNCTION_NOT_FOUND
    assert twins["facts"]["mig_mode"] == Status.BINDING_MISSING


def test_a_cards_uuid_leaves_the_machine_only_as_a_digest(stub: Path) -> None:
    (card,) = _read(stub)["found"]["cards"]
    assert "5af0c0de" not in json.dumps(card)
    assert len(card["uuid_sha256"]) == 64


def test_readings_carry_their_unit(stub: Path) -> None:
    assert _read(stub)["readings"] == {
        **dict.fromkeys(telemetry.CARD_READINGS, Status.FUNCTION_NOT_FOUND),
        "device_bytes": 3 * GIB,
        "process_bytes": 2 * GIB,  # ours, not the other process's GiB
        "foreign_processes": 1,
        "power_watts": 212.5,
        "sm_clock_mhz": 2505,
        "memory_clock_mhz": 11201,
        "temperature_celsius": 61,
    }


def test_what_a_driver_does_not_tell_is_a_status_and_never_zero(stub: Path) -> None:
    answer = _read(stub, NVML_STUB="bare")
    (card,) = answer["found"]["cards"]
    assert card["memory_bytes"] == Status.NOT_SUPPORTED
    assert card["uuid_sha256"] == Status.NO_PERMISSION
    readings = answer["readings"]
    assert readings["device_bytes"] == Status.NOT_SUPPORTED
    assert readings["process_bytes"] == Status.NOT_SUPPORTED
    assert readings["power_watts"] == Status.NO_PERMISSION
    assert 0 not in readings.values()


def test_under_windows_the_card_is_measured_and_the_process_is_not_and_the_record_says_so(
    stub: Path,
) -> None:
    readings = _read(stub, NVML_STUB="wddm")["readings"]
    assert (readings["device_bytes"], readings["power_watts"]) == (3 * GIB, 212.5)
    assert readings["process_bytes"] == Status.NOT_SUPPORTED
    samples = [{"monotonic_seconds": float(second), **readings} for second in range(3)]
    fields = measure._fields(samples)
    assert (fields["process_bytes"], fields["device_bytes"]) == ("not_supported", "measured")


def test_a_process_that_the_driver_does_not_list_is_not_measured(stub: Path) -> None:
    script = READ.replace("[os.getpid()]", "[]")
    environment = {**os.environ, **_path_to(stub)}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, check=True
    )
    assert json.loads(answer.stdout)["readings"]["process_bytes"] == Status.NOT_MEASURED


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"NVML_STUB": "hidden"}, "the driver lists none"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES hides them"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES hides them"),
        ({"NVML_STUB": "broken"}, "the NVIDIA driver does not answer: Driver Not Loaded"),
    ],
)
def test_each_reason_for_no_card_is_told(stub: Path, variables: dict[str, str], why: str) -> None:
    found = _read(stub, **variables)["found"]
    assert (found["cards"], found["why_none"]) == ([], why)


@pytest.mark.parametrize("setting", ["0", "GPU-5af0c0de"])
def test_a_card_may_be_made_visible_by_number_or_uuid(stub: Path, setting: str) -> None:
    assert len(_read(stub, CUDA_VISIBLE_DEVICES=setting)["found"]["cards"]) == 1


def test_no_driver_library_is_a_normal_state(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")  # hides a real one
    answer = _read(tmp_path / "libnvidia-ml.so.1")
    assert answer["found"]["cards"] == []
    assert answer["found"]["why_none"] == "it finds no NVIDIA driver library"
    assert "readings" not in answer
