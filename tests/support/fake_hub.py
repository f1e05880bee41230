"""A model hub on 127.0.0.1: real HTTP, two origins, and the faults of real networks on
demand.

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

HEAD, BODY, LINK, API = "head", "body", "link", "api"
"""Kinds of requests: a file's metadata, its bytes, the redirect to them, and all
others.
"""
COMMIT = "a" * 40
PORTAL = b"<!DOCTYPE html><title>Welcome to the hotel</title>" + b" " * 4096
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Fault:
    kind: str
    """drop, stall, slow, short, corrupt, swap, norange, status, portal, chunked,
    endless (chunked) or gzip.
    """
    after: int = 0
    """Bytes of the response before it happens."""
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""  # Of a `json` reply.
    rate: float = 0.0
    """Bytes per second, for `slow`."""


@dataclass
class Seen:
    method: str
    path: str
    range: str | None
    token: str | None
    agent: str
    kind: str
    status: int = 0
    sent: int = 0


@dataclass(frozen=True)
class _File:
    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid

    def entry(self, path: str) -> dict[str, Any]:
        entry = {"rfilename": path, "size": len(self.data), "blobId": self.oid}
        lfs = {"sha256": self.sha256, "size": len(self.data), "pointerSize": 134}
        return entry | ({"lfs": lfs} if self.lfs else {})


class FakeHub:
    """The hub and, on a second port, the server of its large files."""

    def __init__(self, cdn: bool = True) -> None:
        self.cdn = cdn
        self.commit = COMMIT
        self.repos: dict[str, dict[str, _File]] = {}
        self.earlier: dict[str, dict[str, dict[str, _File]]] = {}
        """The files of earlier commits."""
        self.cards: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        """Former names of repositories; the hub ignores case, too."""
        self.gated: dict[str, str] = {}
        """Repository to the token that opens it."""
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.always: dict[str, Fault] = {}
        self.seen: list[Seen] = []
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._servers = [_Server(self), _Server(self)]
        self.url, self.cdn_url = (server.url for server in self._servers)

    def add(self, repo: str, path: str, data: bytes, lfs: bool = True) -> str:
        """Its sha256."""
        file = _File(data, lfs)
        self.repos.setdefault(repo, {})[path] = file
        return file.sha256

    def begin_commit(self, commit: str) -> None:
        """From now on the branch means `commit`; what is added is not in the one
        before.
        """
        self.earlier[self.commit] = {
            repo: dict(files) for repo, files in self.repos.items()
        }
        self.commit = commit

    def bodies(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.kind == BODY]

    def sent(self) -> int:
        return sum(seen.sent for seen in self.bodies())

    def wait_sent(self, n_bytes: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.sent() >= n_bytes, 60.0), (
                self.seen
            )

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever, args=(0.005,), daemon=True
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def fault(self, kind: str) -> Fault | None:
        waiting = self.faults[kind]
        return waiting.popleft() if waiting else self.always.get(kind)


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
        """Nothing: the tests read `seen`."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        kind = self._kind(path)
        fault = self.hub.fault(kind)
        headers = self.headers
        self.seen = Seen(
            self.command,
            self.path,
            headers.get("Range"),
            headers.get("Authorization"),
            headers.get("User-Agent", ""),
            kind,
        )
        self.hub.seen.append(self.seen)
        if fault and self._spoiled(fault):
            return
        if found := re.fullmatch(r"/cdn/(\w+)", path):
            self._body(self._by_sha256(found[1]), fault, {"ETag": f'"{found[1]}"'})
        elif path == "/api/models":
            self._search(parse_qs(url.query))
        elif found := re.fullmatch(
            r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path
        ):
            repo = self._own_name(found[1])
            if self._allowed(repo, found[2] or "main", False):
                self._reply_json(self._info(repo))  # always of the newest commit
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo = self._own_name(found[1])
            if self._allowed(repo, found[2], True):
                self._file(repo, found[2], found[3], fault)
        else:
            self._refuse(404, "", "No such endpoint")

    def _own_name(self, repo: str) -> str:
        own = {name.lower(): name for name in self.hub.repos}
        return self.hub.names.get(repo) or own.get(repo.lower(), repo)

    def _kind(self, path: str) -> str:
        if path.startswith("/cdn/"):
            return BODY
        if "/resolve/" not in path:
            return API
        if self.command == "HEAD":
            return HEAD
        return LINK if self.hub.cdn else BODY

    def _spoiled(self, fault: Fault) -> bool:
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

    def _allowed(self, repo: str, revision: str, is_file: bool) -> bool:
        hub = self.hub
        needed = hub.gated.get(repo)
        token = self.headers.get("Authorization")
        if repo not in hub.repos:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif needed and is_file and token != f"Bearer {needed}":
            self._refuse(
                403 if token else 401, "GatedRepo", f"Access to {repo} is restricted."
            )
        elif revision not in ("main", hub.commit, *hub.earlier):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    def _by_sha256(self, sha256: str) -> _File:
        commits = (self.hub.repos, *self.hub.earlier.values())
        files = (
            file
            for repos in commits
            for files in repos.values()
            for file in files.values()
        )
        return next(file for file in files if file.sha256 == sha256)

    def _info(self, repo: str) -> dict[str, Any]:
        files = self.hub.repos[repo]
        return {
            "id": repo,
            "modelId": repo,
            "sha": self.hub.commit,
            "private": False,
            "gated": "manual" if repo in self.hub.gated else False,
            "cardData": self.hub.cards.get(repo, {}),
            "siblings": [file.entry(path) for path, file in files.items()],
        }

    def _search(self, query: dict[str, list[str]]) -> None:
        text = query.get("search", [""])[0].lower()
        limit = int(query.get("limit", ["100"])[0])
        found = [repo for repo in self.hub.repos if text in repo.lower()]
        about = {
            "downloads": 12,
            "likes": 3,
            "lastModified": "2026-08-22T10:11:12.000Z",
        }
        gated = self.hub.gated
        self._reply_json(
            [{"id": repo, **about, "gated": repo in gated} for repo in found[:limit]]
        )

    def _file(self, repo: str, revision: str, path: str, fault: Fault | None) -> None:
        hub = self.hub
        file = hub.earlier.get(revision, hub.repos)[repo].get(path)
        if file is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers: dict[str, str | None] = {
            "X-Repo-Commit": hub.commit,
            "ETag": f'"{file.etag}"',
            "Accept-Ranges": "bytes",
        }
        if file.lfs:
            size = str(len(file.data))
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": size}
        if file.lfs and hub.cdn:
            headers["Location"] = f"{hub.cdn_url}/cdn/{file.sha256}"
            self._reply(302, b"", headers)
        else:
            self._body(file, fault, headers)

    def _body(
        self, file: _File, fault: Fault | None, headers: dict[str, str | None]
    ) -> None:
        kind = fault.kind if fault else ""
        data, status = _spoil(file.data, fault), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and kind != "norange":
            start, total = int(wanted[1]), len(data)
            if start >= total:
                self._reply(416, b"", {"Content-Range": f"bytes */{total}"})
                return
            data, status = data[start : int(wanted[2]) + 1 if wanted[2] else total], 206
            headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{total}"
        if kind == "gzip":
            headers["Content-Encoding"] = "gzip"
        self._begin(
            status, headers, None if kind in ("chunked", "endless") else len(data)
        )
        if self.command != "HEAD":
            self._send(data, fault)

    def _send(self, data: bytes, fault: Fault | None) -> None:
        ends = fault.after if fault and fault.kind in ("drop", "stall") else len(data)
        chunked = fault is not None and fault.kind in ("chunked", "endless")
        for start in range(0, min(ends, len(data)), _BLOCK):
            block = data[start : min(start + _BLOCK, ends)]
            if fault and fault.rate and self.hub.closing.wait(len(block) / fault.rate):
                return
            self.wfile.write(
                b"%x\r\n%b\r\n" % (len(block), block) if chunked else block
            )
            self._note(len(block))
        while fault and fault.kind == "endless" and not self.hub.closing.is_set():
            self.wfile.write(b"%x\r\n%b\r\n" % (_BLOCK, bytes(_BLOCK)))
        if chunked:
            self.wfile.write(b"0\r\n\r\n")
        if ends < len(data) and fault:
            self.close_connection = True
            if fault.kind == "stall":
                self.hub.closing.wait(60)

    def _note(self, sent: int) -> None:
        with self.hub.changed:
            self.seen.sent += sent
            self.hub.changed.notify_all()

    def _refuse(self, status: int, word: str, text: str) -> None:
        headers = {"X-Error-Code": word or None, "X-Error-Message": text}
        self._reply(status, json.dumps({"error": text}).encode(), headers)

    def _reply_json(self, value: Any) -> None:
        self._reply(
            200, json.dumps(value).encode(), {"Content-Type": "application/json"}
        )

    def _reply(
        self, status: int, body: bytes, headers: Mapping[str, str | None]
    ) -> None:
        self._begin(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(
        self, status: int, headers: Mapping[str, str | None], length: int | None
    ) -> None:
        self.seen.status = status
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        for name, value in headers.items():
            if value is not None and not (
                name == "Content-Length" and length is not None
            ):
                self.send_header(name, value)
        self.end_headers()


def _spoil(data: bytes, fault: Fault | None) -> bytes:
    kind = fault.kind if fault else ""
    if fault and kind == "corrupt":
        return (
            data[: fault.after]
            + bytes([data[fault.after] ^ 255])
            + data[fault.after + 1 :]
        )
    if fault and kind == "short":
        return data[: fault.after]
    if kind == "swap":
        return data[:4] + data[:3:-1]
    return data
