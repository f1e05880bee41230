"""A model hub on 127.0.0.1: real HTTP, two origins, and the faults of real networks.

with FakeHub() as hub:
    hub.add("org/m-GGUF", "m-Q4_K_M.gguf", data)
    hub.faults[BODY].append(Fault("drop", after=1_000_000))   # the next body, once
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HEAD = "head"
"""A request for a file's metadata."""
LINK = "link"
"""A request to the hub for a large file: the response redirects to its bytes."""
BODY = "body"
"""A request for a file's bytes."""
API = "api"
"""Any other request."""

COMMIT = "a" * 40
PORTAL = b"<!DOCTYPE html><title>Welcome to the hotel</title>" + b" " * 4096
_BLOCK = 1 << 16

_CDN_PATH = re.compile(r"/cdn/(\w+)")
_INFO_PATH = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_FILE_PATH = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")

Headers = dict[str, str | None]
"""None is a header that is not sent."""


@dataclass(frozen=True)
class Fault:
    kind: str
    """What happens to the response:

    * drop: the connection ends after some bytes.
    * stall: no more bytes come, but the connection stays.
    * slow: the bytes come at a rate.
    * short, corrupt, swap: fewer bytes, a wrong byte, or other bytes of the same size.
    * norange: the whole file, whatever range was requested.
    * status, json, portal: another response.
    * chunked, endless: no length; and then zeros without end.
    * digits: the file's size, which a partial answer names, has 4,500 digits.
    * gzip: a header says that the bytes are compressed.
    """
    after: int = 0
    """Bytes of the response before it happens."""
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    """Of a `json` response."""
    rate: float = 0.0
    """Bytes per second, for `slow`."""


@dataclass
class RecordedRequest:
    method: str
    path: str
    range: str | None
    token: str | None
    agent: str
    kind: str
    status: int = 0
    """Of the response."""
    sent: int = 0
    """Bytes of the body that were sent."""


@dataclass(frozen=True)
class _StoredFile:
    data: bytes
    lfs: bool
    """Large files have a sha256; git keeps small ones under a sha1."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid

    def list_entry(self, path: str) -> dict[str, Any]:
        """As the hub lists it."""
        size = len(self.data)
        entry: dict[str, Any] = {"rfilename": path, "size": size, "blobId": self.oid}
        if self.lfs:
            entry["lfs"] = {"sha256": self.sha256, "size": size, "pointerSize": 134}
        return entry


class FakeHub:
    """The hub and, on a second port, the server of its large files."""

    def __init__(self, cdn: bool = True) -> None:
        """Without `cdn` the hub sends large files itself."""
        self.cdn = cdn
        self.commit = COMMIT
        self.repos: dict[str, dict[str, _StoredFile]] = {}
        self.earlier: dict[str, dict[str, dict[str, _StoredFile]]] = {}
        """The repositories at earlier commits."""
        self.cards: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        """Former names of repositories; the hub ignores case, too."""
        self.gated: dict[str, str] = {}
        """Repository to the token that opens it."""
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        """By the kind of request, once each."""
        self.always: dict[str, Fault] = {}
        """By the kind of request, when no other fault is left."""
        self.requests: list[RecordedRequest] = []
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._servers = [_Server(self), _Server(self)]
        self.url = self._servers[0].url
        self.cdn_url = self._servers[1].url

    def add(self, repo: str, path: str, data: bytes, lfs: bool = True) -> str:
        """Its sha256."""
        file = _StoredFile(data, lfs)
        self.repos.setdefault(repo, {})[path] = file
        return file.sha256

    def begin_commit(self, commit: str) -> None:
        """From now on the branch means `commit`.

        What is added is not in the one before.
        """
        self.earlier[self.commit] = {
            repo: dict(files) for repo, files in self.repos.items()
        }
        self.commit = commit

    def bodies(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.kind == BODY]

    def sent(self) -> int:
        """Bytes of all bodies."""
        return sum(request.sent for request in self.bodies())

    def wait_sent(self, n_bytes: int) -> None:
        with self.changed:
            has_sent = self.changed.wait_for(lambda: self.sent() >= n_bytes, 60.0)
            assert has_sent, self.requests

    def take_fault(self, kind: str) -> Fault | None:
        """Of the next request of a kind."""
        once = self.faults[kind]
        return once.popleft() if once else self.always.get(kind)

    def find_file(self, sha256: str) -> _StoredFile:
        """In any commit."""
        for repos in (self.repos, *self.earlier.values()):
            for files in repos.values():
                for file in files.values():
                    if file.sha256 == sha256:
                        return file
        raise AssertionError(f"no file {sha256}")

    def __enter__(self) -> FakeHub:
        poll_interval = 0.005
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever, args=(poll_interval,), daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: clients of these tests disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.hub = self.server.hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Nothing: the tests read `requests`."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    # --- routes

    def _route(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        kind = self._kind(path)
        fault = self.hub.take_fault(kind)
        self.request_record = RecordedRequest(
            method=self.command,
            path=self.path,
            range=self.headers.get("Range"),
            token=self.headers.get("Authorization"),
            agent=self.headers.get("User-Agent", ""),
            kind=kind,
        )
        self.hub.requests.append(self.request_record)
        if fault is not None and self._replace_response(fault):
            return
        if cdn := _CDN_PATH.fullmatch(path):
            sha256 = cdn[1]
            self._send_file(self.hub.find_file(sha256), {"ETag": f'"{sha256}"'}, fault)
        elif path == "/api/models":
            self._send_search_results(parse_qs(url.query))
        elif info := _INFO_PATH.fullmatch(path):
            repo = self._current_name(info[1])
            if self._is_allowed(repo, info[2] or "main", is_file=False):
                self._send_json(self._describe_repo(repo))  # Always the newest commit.
        elif file := _FILE_PATH.fullmatch(path):
            repo = self._current_name(file[1])
            if self._is_allowed(repo, file[2], is_file=True):
                self._send_or_redirect(repo, file[2], file[3], fault)
        else:
            self._refuse(404, "", "No such endpoint")

    def _kind(self, path: str) -> str:
        if path.startswith("/cdn/"):
            return BODY
        if "/resolve/" not in path:
            return API
        if self.command == "HEAD":
            return HEAD
        return LINK if self.hub.cdn else BODY

    def _replace_response(self, fault: Fault) -> bool:
        """Whether the fault replaced the whole response."""
        if fault.kind == "status":
            self._reply(fault.status, b"", dict(fault.headers))
        elif fault.kind == "json":
            self._reply(200, fault.body.encode(), {"Content-Type": "application/json"})
        elif fault.kind == "portal":
            self._reply(200, PORTAL, {"Content-Type": "text/html"})
        elif fault.kind == "stall" and not fault.after:
            self.hub.closing.wait(60)
        else:
            return False
        return True

    def _current_name(self, repo: str) -> str:
        if repo in self.hub.names:
            return self.hub.names[repo]
        for name in self.hub.repos:
            if name.lower() == repo.lower():
                return name
        return repo

    def _is_allowed(self, repo: str, revision: str, *, is_file: bool) -> bool:
        """Refuses the request otherwise."""
        hub = self.hub
        needed = hub.gated.get(repo)
        token = self.headers.get("Authorization")
        if repo not in hub.repos:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif needed and is_file and token != f"Bearer {needed}":
            status = 403 if token else 401
            self._refuse(status, "GatedRepo", f"Access to {repo} is restricted.")
        elif revision not in ("main", hub.commit, *hub.earlier):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    # --- answers of the API

    def _describe_repo(self, repo: str) -> dict[str, Any]:
        files = self.hub.repos[repo]
        return {
            "id": repo,
            "modelId": repo,
            "sha": self.hub.commit,
            "private": False,
            "gated": "manual" if repo in self.hub.gated else False,
            "cardData": self.hub.cards.get(repo, {}),
            "siblings": [file.list_entry(path) for path, file in files.items()],
        }

    def _send_search_results(self, query: dict[str, list[str]]) -> None:
        text = query.get("search", [""])[0].lower()
        limit = int(query.get("limit", ["100"])[0])
        found = [repo for repo in self.hub.repos if text in repo.lower()]
        results = []
        for repo in found[:limit]:
            results.append(
                {
                    "id": repo,
                    "downloads": 12,
                    "likes": 3,
                    "lastModified": "2026-08-22T10:11:12.000Z",
                    "gated": repo in self.hub.gated,
                }
            )
        self._send_json(results)

    # --- files

    def _send_or_redirect(
        self, repo: str, revision: str, path: str, fault: Fault | None
    ) -> None:
        hub = self.hub
        repos = hub.earlier.get(revision, hub.repos)
        file = repos[repo].get(path)
        if file is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers: Headers = {
            "X-Repo-Commit": hub.commit,
            "ETag": f'"{file.etag}"',
            "Accept-Ranges": "bytes",
        }
        if file.lfs:
            headers["X-Linked-Etag"] = headers["ETag"]
            headers["X-Linked-Size"] = str(len(file.data))
        if file.lfs and hub.cdn:
            headers["Location"] = f"{hub.cdn_url}/cdn/{file.sha256}"
            self._reply(302, b"", headers)
        else:
            self._send_file(file, headers, fault)

    def _send_file(
        self, file: _StoredFile, headers: Headers, fault: Fault | None
    ) -> None:
        kind = fault.kind if fault else ""
        data = _damage(file.data, fault)
        status = 200
        wanted = _RANGE.fullmatch(self.headers.get("Range") or "")
        if wanted and kind != "norange":
            total = len(data)
            start = int(wanted[1])
            end = int(wanted[2]) + 1 if wanted[2] else total
            if start >= total:
                self._reply(416, b"", {"Content-Range": f"bytes */{total}"})
                return
            data = data[start:end]
            status = 206
            last = start + len(data) - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{total}"
            if kind == "digits":
                headers["Content-Range"] = f"bytes {start}-{last}/{'1' * 4500}"
        if kind == "gzip":
            headers["Content-Encoding"] = "gzip"
        has_length = kind not in ("chunked", "endless")
        self._begin(status, headers, len(data) if has_length else None)
        if self.command != "HEAD":
            self._send_body(data, fault)

    def _send_body(self, data: bytes, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        is_chunked = kind in ("chunked", "endless")
        end = len(data)
        if fault and kind in ("drop", "stall"):
            end = min(end, fault.after)
        for start in range(0, end, _BLOCK):
            block = data[start : min(start + _BLOCK, end)]
            if fault and fault.rate and self.hub.closing.wait(len(block) / fault.rate):
                return
            self.wfile.write(_as_chunk(block) if is_chunked else block)
            self._record_sent(len(block))
        if kind == "endless":
            while not self.hub.closing.is_set():
                self.wfile.write(_as_chunk(bytes(_BLOCK)))
        if is_chunked:
            self.wfile.write(_as_chunk(b""))
        if end < len(data):
            self.close_connection = True
            if kind == "stall":
                self.hub.closing.wait(60)

    def _record_sent(self, n_bytes: int) -> None:
        with self.hub.changed:
            self.request_record.sent += n_bytes
            self.hub.changed.notify_all()

    # --- responses

    def _refuse(self, status: int, code: str, text: str) -> None:
        headers: Headers = {"X-Error-Code": code or None, "X-Error-Message": text}
        self._reply(status, json.dumps({"error": text}).encode(), headers)

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._reply(200, body, {"Content-Type": "application/json"})

    def _reply(
        self, status: int, body: bytes, headers: Mapping[str, str | None]
    ) -> None:
        self._begin(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(
        self, status: int, headers: Mapping[str, str | None], length: int | None
    ) -> None:
        """`length` is None for a chunked body."""
        self.request_record.status = status
        self.send_response(status)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            is_known = name == "Content-Length" and length is not None
            if value is not None and not is_known:
                self.send_header(name, value)
        self.end_headers()


def _as_chunk(block: bytes) -> bytes:
    """Of a chunked body, which an empty chunk ends."""
    return b"%x\r\n%b\r\n" % (len(block), block)


def _damage(data: bytes, fault: Fault | None) -> bytes:
    if fault is None:
        return data
    if fault.kind == "corrupt":
        changed = bytearray(data)
        changed[fault.after] ^= 255
        return bytes(changed)
    if fault.kind == "short":
        return data[: fault.after]
    if fault.kind == "swap":
        return data[:4] + data[:3:-1]
    return data
