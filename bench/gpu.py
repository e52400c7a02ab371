"""Which device a run uses: the profile that was asked for, or the one that fits what is found here.

gpu_profile.py reads the profiles. A profile that names a card is refused on another one, since its numbers
would stand beside those of that card; `as_is` allows it and makes the record unofficial.
"""

import hashlib
import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from miniverl.bench.gpu_profile import GIB, Profile, profiles
from miniverl.bench.nvml import Status, ask, call, opened, scaled
from miniverl.compiler.suggest import did_you_mean
from miniverl.engine.problem import CannotHere, Problem, WrongCall

# A card's own figure lies a little below the one it is sold with: 15.99 of 16, 23.99 of 24.
_LEAST_SHARE_OF_MEMORY = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A card that CUDA programs started here may use. `index` is the driver's."""

    index: int
    name: str
    memory_bytes: int | Status
    uuid_sha256: str | Status  # the UUID itself names one card in the world
    facts: Mapping[str, int | float | str | Status]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What is here. `why_none` tells why there is no card."""

    cards: tuple[Card, ...]
    driver: str | None
    driver_cuda: str | None  # the newest CUDA that the driver can run
    torch: str | None  # version of the installed one
    why_none: str | None

    @property
    def torch_has_cuda(self) -> bool:
        """On Linux the builds on PyPI are CUDA builds; others say +cpu, +rocm or +xpu."""
        _, _, build = (self.torch or "+none").partition("+")
        return not build or build.startswith("cu")

    @property
    def sentence(self) -> str:
        """What was found, for a person."""
        if not self.cards:
            return f"no NVIDIA card ({self.why_none})"
        return ", ".join(card.name for card in self.cards)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    profile: Profile
    card: Card | None
    is_official: bool  # False: the card is not the profile's
    note: str | None  # what a person should know about the choice

    @property
    def compute_capability(self) -> str | None:
        """As the card says it, else its profile; None where nobody does."""
        said = None if self.card is None else self.card.facts.get("compute_capability")
        return (
            said
            if isinstance(said, str) and not isinstance(said, Status)
            else self.profile.compute_capability
        )


def detect() -> Found:
    """The cards, the driver and the torch of this machine; loads no torch."""
    torch = _installed("torch")
    with opened() as closed:
        if closed:
            return Found(cards=(), driver=None, driver_cuda=None, torch=torch, why_none=closed)
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        cards = [_card(index, handle) for index, handle in enumerate(handles)]
        uuids = [ask(partial(pynvml.nvmlDeviceGetUUID, handle)) for handle in handles]
        driver = ask(pynvml.nvmlSystemGetDriverVersion)
        cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    visible = _visible(cards, uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
    hidden = "CUDA_VISIBLE_DEVICES hides them" if cards else "the driver lists none"
    return Found(
        cards=visible,
        driver=None if isinstance(driver, Status) else driver,
        driver_cuda=None if isinstance(cuda, Status) else f"{cuda // 1000}.{cuda % 1000 // 10}",
        torch=torch,
        why_none=None if visible else hidden,
    )


def choose(name: str | None, as_is: bool, found: Found) -> Chosen:
    """The profile called `name`, or without a name the best one for what was found.

    Raises WrongCall for an unknown name, CannotHere where the profile does not fit this machine.
    """
    if name is None:
        return _fitting(found)
    profile = _known(name)
    if profile.device == "cpu":
        return Chosen(profile=profile, card=None, is_official=True, note=None)
    if not found.cards:
        reason = f"GPU profile {name} needs {profile.title}, and this machine has {found.sentence}"
        raise CannotHere(
            [_problem(name, reason, "Run it on a machine with that card, or here with --gpu cpu")]
        )
    if not found.torch_has_cuda:
        reason = f"This machine has {found.sentence}, but {_torch(found)}"
        fix = f"Install a CUDA stack: MINIVERL_STACK={profile.stack} make setup"
        raise CannotHere([_problem(name, reason, fix)])
    matching = [card for card in found.cards if _fits(profile, card)]
    if matching:
        return Chosen(profile=profile, card=matching[0], is_official=True, note=None)
    if as_is:
        note = f"Using {found.sentence} in place of {profile.title}: the record is unofficial"
        return Chosen(profile=profile, card=found.cards[0], is_official=False, note=note)
    reason = f"GPU profile {name} is for {profile.title}, and this machine has {found.sentence}"
    own = _fitting(found).profile.name
    fix = f"Take --gpu {own}, or --as-is for an unofficial record"
    raise CannotHere([_problem(name, reason, fix)])


def default_workloads(name: str | None) -> tuple[str, ...]:
    """What is measured where no workload is named: on the profile called `name`, else on what is here.

    Raises WrongCall for an unknown name.
    """
    if name is None:
        return _fitting(detect()).profile.workloads
    return _known(name).workloads


def _known(name: str) -> Profile:
    known = profiles()
    if name not in known:
        fix = did_you_mean(name, known, f"Known: {', '.join(known)}")
        raise WrongCall([_problem(name, "there is no such profile", fix)])
    return known[name]


def _fitting(found: Found) -> Chosen:
    if found.cards and found.torch_has_cuda:
        for profile in profiles().values():
            if profile.device == "cuda" and _fits(profile, found.cards[0]):
                return Chosen(profile=profile, card=found.cards[0], is_official=True, note=None)
    note = None
    if found.cards:
        note = f"Using the CPU: this machine has {found.sentence}, but {_torch(found)}"
    return Chosen(profile=profiles()["cpu"], card=None, is_official=True, note=note)


def _fits(profile: Profile, card: Card) -> bool:
    if profile.device_name_pattern is None or not re.fullmatch(
        profile.device_name_pattern, card.name
    ):
        return False
    if profile.memory_gib is None or isinstance(card.memory_bytes, Status):
        return True
    return card.memory_bytes >= _LEAST_SHARE_OF_MEMORY * profile.memory_gib * GIB


def _card(index: int, handle: Any) -> Card:
    """What does not change while a run goes on."""
    uuid = ask(partial(pynvml.nvmlDeviceGetUUID, handle))
    memory = ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    name = ask(partial(pynvml.nvmlDeviceGetName, handle))
    return Card(
        index=index,
        name="an unnamed NVIDIA card" if isinstance(name, Status) else name,
        memory_bytes=memory,
        uuid_sha256=uuid if isinstance(uuid, Status) else hashlib.sha256(uuid.encode()).hexdigest(),
        facts={
            "ecc_mode": _current(call("nvmlDeviceGetEccMode", handle)),
            "mig_mode": _current(call("nvmlDeviceGetMigMode", handle)),
            "persistence_mode": call("nvmlDeviceGetPersistenceMode", handle),
            "compute_mode": call("nvmlDeviceGetComputeMode", handle),
            "power_limit_watts": scaled(call("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
            "max_sm_clock_mhz": call("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM),
            "compute_capability": _capability(handle),
            "max_pcie_generation": call("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "max_pcie_width": call("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "vbios": call("nvmlDeviceGetVbiosVersion", handle),
        },
    )


def _capability(handle: Any) -> str | Status:
    pair = call("nvmlDeviceGetCudaComputeCapability", handle)
    return pair if isinstance(pair, Status) else f"{pair[0]}.{pair[1]}"


def _current(modes: Any) -> Any:
    """Of the mode now and the one after the next reset."""
    return modes if isinstance(modes, Status) else int(modes[0])


def _visible(cards: Sequence[Card], uuids: Sequence[str], setting: str | None) -> tuple[Card, ...]:
    """The cards that CUDA shows under CUDA_VISIBLE_DEVICES, in its order; it stops at the first unknown.

    A card is named by its number or by the beginning of its UUID.
    """
    if setting is None:
        return tuple(cards)
    shown = []
    for name in map(str.strip, setting.split(",")):
        named = [
            card
            for card, uuid in zip(cards, uuids, strict=True)
            if name == str(card.index) or (name.startswith("GPU-") and uuid.startswith(name))
        ]
        if not named:
            break
        shown += named
    return tuple(shown)


def _torch(found: Found) -> str:
    return f"torch {found.torch} has no CUDA" if found.torch else "no torch is installed"


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _problem(name: str, reason: str, fix: str) -> Problem:
    return Problem(field="gpu", value=name, origin="--gpu", reason=reason, fix=fix)
