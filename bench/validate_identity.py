"""Whether a record's names and digests are those of what it names: our pins, its own other blocks, its outputs."""

from collections.abc import Iterator, Mapping
from typing import Any

from miniverl.bench.comparability import sha256_of
from miniverl.bench.entry import content_sha256, files_sha256
from miniverl.bench.finding import Coded, Mistake, coded, pointer
from miniverl.bench.pin import (
    LOCAL,
    DerivedPin,
    GgufPin,
    GitPin,
    HubPin,
    HubRowsPin,
    LocalPin,
    Pin,
    RowsPin,
    ShapePin,
    UpstreamPin,
    pins,
)
from miniverl.compiler.profiles import FOREIGN
from miniverl.compiler.upstream import PINS

Json = Mapping[str, Any]

_EVIDENCE = ("trajectories.jsonl", "adapter/adapter_model.safetensors")


def identity_mistakes(record: Json) -> Iterator[Coded]:
    """Every mistake of a version 2 record that has passed its schema."""
    yield from coded("name_differs", _names(record))
    yield from coded("output_differs", _outputs(record))
    yield from coded("unknown_pin", _upstream(record["verl"]))
    yield from coded("unknown_pin", _unknown_pins(record))
    yield from coded("pin_differs", _other_content(record))
    yield from coded("pin_differs", _other_rows(record))


def identity_mistakes_v1(record: Json) -> Iterator[Coded]:
    """Version 1 names its upstream, and the profile of a program that is not ours."""
    yield from coded("unknown_pin", _upstream(record["verl"]))
    yield from coded("name_differs", _foreign_profile(record["profile_identity"]))


def _names(record: Json) -> Iterator[Mistake]:
    """Names and digests that stand in two places."""
    identity, verl = record["profile_identity"], record["verl"]
    content = {name: value for name, value in identity.items() if name != "digest"}
    digest = sha256_of(content)
    if identity["digest"] != digest:
        reason = "is not the digest of the other fields"
        yield Mistake("/profile_identity/digest", identity["digest"], reason, digest)
    pairs = {
        "profile_name": ("/profile", record["profile"]),
        "upstream_commit": ("/verl/commit", verl["commit"]),
        "upstream_tag": ("/verl/tag", verl["tag"]),
        "upstream_repository": ("/verl/repository", verl["repository"]),
    }
    for name, (field, value) in pairs.items():
        if identity.get(name, value) != value:
            stated = identity[name]
            yield Mistake(field, value, f"profile_identity says {stated!r}", stated)
    is_gpu = record["hardware"]["device"] == "cuda"
    if is_gpu and not record["hardware"]["gpu"] and record["status"] != "blocked":
        yield Mistake("/hardware/gpu", record["hardware"]["gpu"], "the device is cuda")


def _outputs(record: Json) -> Iterator[Mistake]:
    """The digests of what the launches wrote, against the artifacts and the claims."""
    files = record["artifacts"]["files"]
    finished = [
        (index, each) for index, each in enumerate(record["launches"]) if each["is_finished"]
    ]
    straight = next(((i, each) for i, each in finished if each["role"] == "straight"), None)
    if straight:
        index, launch = straight
        for name, sha256 in launch["outputs"].items():
            kept = files.get(name, {}).get("sha256")
            if kept != sha256:
                field = pointer("launches", index, "outputs", name)
                yield Mistake(field, sha256, f"the artifacts say {kept}", kept)
    by_name = {
        name: {each["outputs"].get(name) for _, each in finished if each["role"] == "straight"}
        for name in _EVIDENCE
    }
    differ = [name for name, digests in by_name.items() if len(digests) > 1]
    if differ and record["determinism"]["new_process"] == "proven":
        reason = f"straight launches differ in {', '.join(differ)}"
        yield Mistake("/determinism/new_process", "proven", reason, "failed")


def _upstream(verl: Json) -> Iterator[Mistake]:
    """The release must be one that this version has pinned, under the tag that it has there."""
    commits = {release.commit: release.tag for release in PINS.values()}
    tag = commits.get(verl["commit"])
    if tag is None:
        known = ", ".join(f"{each} ({commit[:12]})" for commit, each in commits.items())
        yield Mistake("/verl/commit", verl["commit"], "no pinned release of verl", known)
    elif verl["tag"] != tag:
        yield Mistake("/verl/tag", verl["tag"], f"the pinned commit is {tag}", tag)


def _unknown_pins(record: Json) -> Iterator[Mistake]:
    """What is said to be pinned by us. `bound` inputs are the user's own."""
    for index, each in enumerate(record["inputs"]):
        if each["pin_state"] != "bound" and each["pin"] not in pins():
            field = pointer("inputs", index, "pin")
            yield Mistake(field, each["pin"], "there is no such pin", ", ".join(pins()))


def _other_content(record: Json) -> Iterator[Mistake]:
    """Digests of known pins, where the record has inputs, models and rows of them.

    A pin keeps its digest for good: another content is another pin. So a record of an earlier version passes.
    """
    known = {
        each["pin"]: pins()[each["pin"]]
        for each in record["inputs"]
        if each["pin_state"] == "known" and each["pin"] in pins()
    }
    for index, each in enumerate(record["inputs"]):
        expected = _sha256(known[each["pin"]]) if each["pin"] in known else None
        if expected is not None and each["sha256"] != expected:
            field = pointer("inputs", index, "sha256")
            yield Mistake(field, each["sha256"], f"the pin {each['pin']} has {expected}", expected)
    for role, model in record["models"].items():
        match known.get(model["pin"]):
            case (
                GgufPin(weights_sha256=expected)
                | DerivedPin(weights_sha256=expected)
                | ShapePin(weights_sha256=expected)
            ):
                if model["weights_sha256"] != expected:
                    field = pointer("models", role, "weights_sha256")
                    reason = f"the pin {model['pin']} has {expected}"
                    yield Mistake(field, model["weights_sha256"], reason, expected)
    rows = [known.get(each["pin"]) for each in record["inputs"] if each["kind"] == "data"]
    pinned = [each for each in rows if isinstance(each, RowsPin)]
    digests = [split.sha256 for each in pinned for split in each.splits.values()]
    if rows == pinned and rows and record["recipe"]["train_sha256"] not in digests:
        found = record["recipe"]["train_sha256"]
        yield Mistake("/recipe/train_sha256", found, "the pinned data has no such rows")


def _other_rows(record: Json) -> Iterator[Mistake]:
    """The user's own rows are those that the recipe was compiled for, and named by their digest."""
    stated = record["recipe"]["compiled"]["data"]
    train = {"train": stated["train_sha256"]}
    validation = {"validation": stated.get("validation_sha256")}
    expected = [sha256_of(splits) for splits in ({**train, **validation}, train, validation)]
    for index, each in enumerate(record["inputs"]):
        if each["pin_state"] == "bound" and each["pin"].startswith(LOCAL):
            if each["sha256"] not in expected:
                reason = "the recipe was compiled for other rows"
                yield Mistake(pointer("inputs", index, "sha256"), each["sha256"], reason)
            elif each["pin"] != f"{LOCAL}{each['sha256'][:12]}":
                reason = "it is named by its digest"
                name = f"{LOCAL}{each['sha256'][:12]}"
                yield Mistake(pointer("inputs", index, "pin"), each["pin"], reason, name)


def _sha256(pin: Pin) -> str | None:
    """What `inputs` states of a pin whose content is known beforehand; None: not in one digest."""
    match pin:
        case UpstreamPin():
            return PINS[pin.version].tree_sha256
        case HubPin() | GitPin() | LocalPin():
            return None
        case HubRowsPin():
            files = {name: split.sha256 for name, split in pin.splits.items() if split.sha256}
            return files_sha256(files) if files.keys() == pin.splits.keys() else None
        case _:
            return content_sha256(pin)


def _foreign_profile(identity: Json) -> Iterator[Mistake]:
    """The profiles of the earlier program, whose identities are known one by one."""
    of_profile = f"identity of {identity['profile_name']}"
    known = [digest for digest, told in FOREIGN.items() if told == of_profile]
    if known and identity["digest"] not in known:
        reason = "not the digest that this profile was published with"
        yield Mistake("/profile_identity/digest", identity["digest"], reason, known[0])
