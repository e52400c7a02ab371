"""A snapshot of a repository on the Hub at one commit, each file verified against the Hub's own listing.

The listing names a SHA-256 for large files and a git blob id for small ones. Digests in the pin are verified
on top; a file without one there gets its SHA-256 at the first fetch, in the entry's manifest. HF_ENDPOINT and
HF_TOKEN hold. Only weights, configs, tokenizers and texts are taken: nothing that executes or unpickles.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import disable_progress_bars

from miniverl.bench.cache import wrong_digest
from miniverl.bench.disk import file_sha256, folder_bytes
from miniverl.bench.pin import HubPin, HubRowsPin
from miniverl.compiler.upstream import Progress
from miniverl.engine.problem import CannotHere, Problem, Refused

TAKEN = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "*.md", "LICENSE*"]

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """Which files of a snapshot."""

    pin: HubPin | HubRowsPin
    kind: Literal["model", "dataset"]
    taken: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A file as the Hub lists it."""

    name: str
    bytes: int
    blob_id: str  # git's SHA-1 over header and content
    sha256: str | None  # of files in large-file storage


def fill(pin: HubPin, folder: Path, progress: Progress) -> None:
    """Download `pin`'s snapshot into `folder`; what an earlier try got is kept beside and taken up.

    Mirrors are asked in turn where the Hub, or the one before, does not give it. Raises CannotHere when the Hub does not give it, Refused for wrong bytes.
    """
    staging, listed = downloaded(pin, "model", TAKEN, folder, progress)
    for file in listed:
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        (staging / file.name).rename(target)
        target.chmod(0o644)
    shutil.rmtree(staging)


def downloaded(
    pin: HubPin | HubRowsPin,
    kind: Literal["model", "dataset"],
    taken: Sequence[str],
    folder: Path,
    progress: Progress,
) -> tuple[Path, list[Listed]]:
    """The files that match `taken`, in a folder beside `folder`, verified against the Hub's listing.

    Raises as `fill`.
    """
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    staging = folder.parent / f".hub-{pin.repository.replace('/', '-')}-{pin.revision[:12]}"
    wanted = _Wanted(pin=pin, kind=kind, taken=list(taken))
    listed = _downloaded(wanted, staging, progress)
    problems = [problem for file in listed for problem in _unlike_listing(staging, file)]
    if problems:
        shutil.rmtree(staging)
        raise Refused(problems)
    return staging, listed


def wrong_content(pin: HubPin, folder: Path) -> list[Problem]:
    """Each file with a digest in the pin that is missing or another one."""
    problems = []
    for name, known in sorted(pin.files.items()):
        path = folder / name
        found = file_sha256(path) if path.exists() else "no such file"
        if found != known.sha256:
            problems.append(wrong_digest(path, known.sha256, found))
    return problems


def _downloaded(wanted: _Wanted, staging: Path, progress: Progress) -> list[Listed]:
    """What the first server lists that gives all of it; raises CannotHere with what each of them said."""
    problems: list[Problem] = []
    for endpoint in (os.environ.get("HF_ENDPOINT"), *wanted.pin.mirrors):
        try:
            listed = _listing(wanted, endpoint)
            _download(wanted, endpoint, staging, sum(file.bytes for file in listed), progress)
        except CannotHere as error:
            problems += error.problems
        else:
            return listed
    raise CannotHere(problems)


def _listing(wanted: _Wanted, endpoint: str | None) -> list[Listed]:
    api, pin = HfApi(endpoint=endpoint), wanted.pin
    try:
        tree = api.list_repo_tree(
            pin.repository, revision=pin.revision, repo_type=wanted.kind, recursive=True
        )
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        raise CannotHere([_refusal(pin, endpoint, error)]) from error
    return [
        _listed(entry)
        for name, entry in sorted(files.items())
        if any(fnmatch(name, pattern) for pattern in wanted.taken)
    ]


def _listed(entry: RepoFile) -> Listed:
    sha256 = None if entry.lfs is None else entry.lfs.sha256
    return Listed(name=entry.path, bytes=entry.size, blob_id=entry.blob_id, sha256=sha256)


def _download(
    wanted: _Wanted, endpoint: str | None, staging: Path, whole_bytes: int, progress: Progress
) -> None:
    pin = wanted.pin
    with ThreadPoolExecutor(1) as thread:
        download = thread.submit(
            snapshot_download,
            pin.repository,
            revision=pin.revision,
            repo_type=wanted.kind,
            local_dir=staging,
            allow_patterns=wanted.taken,
            endpoint=endpoint,
        )
        while True:
            try:
                download.result(_POLL_SECONDS)
            except TimeoutError:
                progress(pin.title, folder_bytes(staging), whole_bytes)
                continue
            except (httpx2.HTTPError, OSError) as error:
                raise CannotHere([_refusal(pin, endpoint, error)]) from error
            progress(pin.title, whole_bytes, whole_bytes)
            return


def _unlike_listing(staging: Path, file: Listed) -> list[Problem]:
    path = staging / file.name
    if not path.exists():
        return [wrong_digest(path, file.sha256 or file.blob_id, "no such file")]
    if file.sha256 is not None:
        expected, found = file.sha256, file_sha256(path)
    else:
        expected, found = file.blob_id, _git_blob_id(path)
    return [] if found == expected else [wrong_digest(path, expected, found)]


def _git_blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _refusal(pin: HubPin | HubRowsPin, endpoint: str | None, error: Exception) -> Problem:
    """What the Hub or the network said, as a sentence, and what mends it."""
    reason, fix = _said(error)
    return Problem(
        field=pin.repository,
        value=pin.revision,
        origin=endpoint or "the Hub",
        reason=reason,
        fix=fix,
    )


def _said(error: Exception) -> tuple[str, str]:
    retry = "Fetch again: what has arrived is kept"
    token = "Set HF_TOKEN to a token that may read it"
    match error:
        case GatedRepoError():
            return "it asks for its terms to be accepted", f"Accept them on its page. {token}"
        case RepositoryNotFoundError():
            return "there is no such repository, or it is not public", token
        case RevisionNotFoundError():
            return "the repository has no such commit", "Correct the pin's revision"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"access was refused ({error.response.status_code})", token
        case HfHubHTTPError() if error.response.status_code == 429:
            return "too many requests (429)", "Wait some minutes and fetch again"
        case HfHubHTTPError():
            return f"the server failed ({error.response.status_code})", retry
        case OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE forbids the network", "Unset HF_HUB_OFFLINE and fetch again"
        case LocalEntryNotFoundError() if isinstance(error.__cause__, Exception):
            return _said(error.__cause__)
        case httpx2.HTTPError() if not isinstance(error, httpx2.RemoteProtocolError):
            return f"it cannot be reached: {error}", "Connect to the network and fetch again"
    return f"the download broke off: {str(error).splitlines()[0]}", retry
