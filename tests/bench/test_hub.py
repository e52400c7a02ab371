"""The Hub client against a server on this machine that speaks the Hub's routes."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from miniverl.bench import hub
from miniverl.bench.pin import HubFile, HubPin
from miniverl.compiler.upstream import quiet
from miniverl.engine.problem import CannotHere, Refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "some-lab/tiny"
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {
    "config.json": b'{"model_type": "llama"}\n',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"version": "1.0"}\n',
    "pytorch_model.bin": b"a pickle",
    "modeling_tiny.py": b"raise SystemExit\n",
}
TRAIN, TEST = "main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"
LARGE = {
    "model.safetensors",
    "pytorch_model.bin",
    TRAIN,
    TEST,
}  # in large-file storage, hence redirected


@dataclass
class Hub:
    """What the server holds and how it misbehaves; `seen` is every request as "METHOD path"."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    listed: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    tree_status: int = 200
    tree_error: str | None = None
    file_status: dict[str, int] = field(default_factory=dict)
    truncate: dict[str, list[int]] = field(default_factory=dict)  # bytes sent by the next answers
    ranges: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.seen.append(f"{self.command} {path}")
        kind, address = "models", path
        if path.startswith(("/datasets/", "/api/datasets/")):
            kind, address = "datasets", path.replace("/datasets/", "/", 1)
        resolved = f"/{REPOSITORY}/resolve/{COMMIT}/"
        if path == f"/api/{kind}/{REPOSITORY}/tree/{COMMIT}":
            self._tree()
        elif address.startswith(resolved):
            self._resolve(address.removeprefix(resolved), with_body)
        elif path.startswith("/storage/"):
            self._file(path.removeprefix("/storage/"), with_body)
        else:
            self._say(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _tree(self) -> None:
        if self.hub.tree_status != 200:
            headers = {"X-Error-Code": self.hub.tree_error} if self.hub.tree_error else {}
            self._say(self.hub.tree_status, b"{}", headers)
            return
        entries: list[dict[str, Any]] = []
        for name, content in self.hub.listed.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if name in LARGE:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self._say(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, with_body: bool) -> None:
        status = self.hub.file_status.get(name, 200)
        if status != 200:
            self._say(status, b"", {})
        elif name in LARGE:
            content = self.hub.files[name]
            headers = {
                "Location": f"/storage/{name}",
                "X-Repo-Commit": COMMIT,
                "X-Linked-ETag": f'"{hashlib.sha256(self.hub.listed[name]).hexdigest()}"',
                "X-Linked-Size": str(len(content)),
            }
            self._say(302, b"", headers)
        else:
            self._file(name, with_body)

    def _file(self, name: str, with_body: bool) -> None:
        content = self.hub.files[name]
        etag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        start = 0
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            last = len(content) - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
        body = content[start:]
        self.send_response(206 if start else 200)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            cuts = self.hub.truncate.get(name, [])
            self.wfile.write(body[: cuts.pop(0)] if cuts else body)
            self.close_connection = True

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server that HF_ENDPOINT names, until the block ends."""
    held = Hub()
    handler = type("Handler", (_Handler,), {"hub": held})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{http.server_port}")
        try_again_at_once(monkeypatch)
        yield held
        http.shutdown()
        thread.join()


def try_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits up to 8 seconds between tries; the tests need not."""
    at_once = SimpleNamespace(sleep=lambda seconds: None, time=time.time)
    monkeypatch.setattr("huggingface_hub.utils._http.time", at_once)
    monkeypatch.setattr("huggingface_hub.file_download.time", at_once)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with listening(monkeypatch) as held:
        yield held


def _pin(**files: str) -> HubPin:
    return HubPin(
        kind="hub",
        title="tiny",
        licence="Apache-2.0",
        repository=REPOSITORY,
        revision=COMMIT,
        files={name.replace("_", "."): HubFile(sha256=sha256) for name, sha256 in files.items()},
    )


def _fill(tmp_path: Path, pin: HubPin | None = None) -> Path:
    folder = tmp_path / "arriving"
    folder.mkdir(exist_ok=True)
    hub.fill(pin or _pin(), folder, quiet)
    return folder


def _refusal(tmp_path: Path) -> tuple[str, str]:
    with pytest.raises(CannotHere) as caught:
        _fill(tmp_path)
    (problem,) = caught.value.problems
    assert problem.field == REPOSITORY
    assert problem.value == COMMIT
    return problem.reason, problem.fix


def test_weights_configs_and_tokenizer_arrive_through_redirects(
    tmp_path: Path, server: Hub
) -> None:
    folder = _fill(tmp_path)
    taken = {path.name: path.read_bytes() for path in folder.iterdir()}
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}
    assert taken == {name: FILES[name] for name in wanted}
    assert "GET /storage/model.safetensors" in server.seen


def test_nothing_that_executes_or_unpickles_is_requested(tmp_path: Path, server: Hub) -> None:
    _fill(tmp_path)
    assert not [line for line in server.seen if line.endswith((".bin", ".py"))]


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path, server: Hub) -> None:
    chunk = 10 << 20  # the client keeps whole chunks of this size
    weights = WEIGHTS * 11
    server.files["model.safetensors"] = server.listed["model.safetensors"] = weights
    server.truncate["model.safetensors"] = [chunk]
    folder = _fill(tmp_path)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert server.ranges == [f"bytes={chunk}-"]


def test_a_download_that_keeps_breaking_off_says_so(tmp_path: Path, server: Hub) -> None:
    server.truncate["model.safetensors"] = [1000] + [0] * 40
    reason, fix = _refusal(tmp_path)
    assert reason.startswith("the download broke off: ")
    assert fix == "Fetch again: what has arrived is kept"


def test_what_arrived_is_kept_for_the_next_try(tmp_path: Path, server: Hub) -> None:
    server.file_status["tokenizer.json"] = 500
    _refusal(tmp_path)
    server.file_status.clear()
    server.seen.clear()
    folder = _fill(tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert "GET /storage/model.safetensors" not in server.seen


def test_bytes_unlike_the_listing_are_refused_by_file_and_digests(
    tmp_path: Path, server: Hub
) -> None:
    server.files["model.safetensors"] = b"\1" + WEIGHTS[1:]
    server.files["config.json"] = b'{"model_type": "gemma"}\n'
    with pytest.raises(Refused) as caught:
        _fill(tmp_path)
    told = {problem.field: problem for problem in caught.value.problems}
    assert set(told) == {"config.json", "model.safetensors"}
    expected = hashlib.sha256(WEIGHTS).hexdigest()
    found = hashlib.sha256(server.files["model.safetensors"]).hexdigest()
    assert told["model.safetensors"].value == found
    assert f"expected {expected}, found {found}" in told["model.safetensors"].reason
    assert not [path for path in tmp_path.iterdir() if path.name != "arriving"]


def test_a_digest_of_the_pin_is_verified_on_top(tmp_path: Path, server: Hub) -> None:
    right = hashlib.sha256(FILES["config.json"]).hexdigest()
    wrong = "f" * 64
    folder = _fill(tmp_path)
    assert not hub.wrong_content(_pin(config_json=right), folder)
    (problem,) = hub.wrong_content(_pin(config_json=right, tokenizer_json=wrong), folder)
    assert problem.field == "tokenizer.json"
    assert f"expected {wrong}" in problem.reason


def test_a_missing_repository_asks_for_a_token(tmp_path: Path, server: Hub) -> None:
    server.tree_status, server.tree_error = 404, "RepoNotFound"
    reason, fix = _refusal(tmp_path)
    assert reason == "there is no such repository, or it is not public"
    assert "HF_TOKEN" in fix


def test_a_missing_commit_points_at_the_pin(tmp_path: Path, server: Hub) -> None:
    server.tree_status, server.tree_error = 404, "RevisionNotFound"
    assert _refusal(tmp_path) == ("the repository has no such commit", "Correct the pin's revision")


def test_a_gated_repository_asks_to_accept_its_terms(tmp_path: Path, server: Hub) -> None:
    server.tree_status, server.tree_error = 403, "GatedRepo"
    reason, fix = _refusal(tmp_path)
    assert reason == "it asks for its terms to be accepted"
    assert "HF_TOKEN" in fix


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "access was refused (401)"),
        (403, "access was refused (403)"),
        (429, "too many requests (429)"),
        (500, "the server failed (500)"),
        (503, "the server failed (503)"),
    ],
)
def test_each_refusal_of_the_listing_is_a_sentence(
    tmp_path: Path, server: Hub, status: int, said: str
) -> None:
    server.tree_status = status
    assert said in _refusal(tmp_path)[0]


@pytest.mark.parametrize(
    ("status", "said"), [(429, "too many requests (429)"), (500, "the server failed (500)")]
)
def test_each_refusal_of_a_file_is_a_sentence(
    tmp_path: Path, server: Hub, status: int, said: str
) -> None:
    server.file_status["config.json"] = status
    assert said in _refusal(tmp_path)[0]


def test_a_mirror_is_asked_where_the_hub_cannot_be_reached(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = os.environ["HF_ENDPOINT"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = _fill(tmp_path, replace(_pin(), mirrors=(mirror,)))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    server.tree_status = 503
    with pytest.raises(CannotHere) as caught:
        _fill(tmp_path, replace(_pin(), mirrors=(mirror,)))
    assert [problem.origin for problem in caught.value.problems] == ["http://127.0.0.1:9", mirror]


def test_without_a_network_it_says_to_connect(
    tmp_path: Path, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    reason, fix = _refusal(tmp_path)
    assert reason.startswith("it cannot be reached: ")
    assert fix == "Connect to the network and fetch again"
