"""One body into one partial file: from where the last try ended, hashed as it is written."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from localspec.errors import AccessError, ChecksumError, DownloadError, ModelFileError
from localspec.models.hub.errand import Broken, Stop
from localspec.models.hub.hubcache import Place
from localspec.models.hub.stream import Stream
from localspec.models.remote import Hub

_BLOCK = 1 << 20
_MAGIC = b"GGUF"

Tell = Callable[[str, int], None]
"""What is being done (`checking`, `loading`, `verifying`) and how many bytes are there."""


class Throttle:
    """At most so many bytes a second, over all transfers that share it."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._free = 0.0

    def take(self, n_bytes: int, stop: Stop) -> None:
        """Wait until that many may pass; raises Stopped as soon as it is called off."""
        limit = self.limit
        if not limit:
            return
        with self._lock:
            now = monotonic()
            start = max(now, self._free)
            self._free = start + n_bytes / limit
        if start > now:
            stop.pause(start - now)


class Transfer:
    """Fetches what is missing of a place's partial file, until it is whole and right."""

    def __init__(self, hub: Hub, place: Place, tell: Tell, stop: Stop, throttle: Throttle) -> None:
        self._hub = hub
        self._place = place
        self._tell = tell
        self._stop = stop
        self._throttle = throttle
        self._have = 0
        self._digest = _digest(place.digest, place.size)

    def run(self) -> None:
        """Raises ChecksumError where the bytes come wrong twice; then nothing of them is left."""
        handle = _open(self._place.part)
        try:
            self._read_back(handle)
            for _ in range(2):
                self._fill(handle)
                self._tell("verifying", self._have)
                if self._digest.hexdigest() == self._place.digest:
                    os.fsync(handle)
                    return
                wrong = self._digest.hexdigest()
                self._restart(handle)
            raise ChecksumError(
                f"{self._place.path} came damaged twice: sha256 {wrong[:12]}…, "
                f"not {self._place.digest[:12]}….",
                "Try again later, or on another network.",
            )
        finally:
            empty = os.fstat(handle).st_size == 0
            os.close(handle)
            if empty:
                self._place.part.unlink(missing_ok=True)

    def _read_back(self, handle: int) -> None:
        """Hash what earlier tries have fetched."""
        if os.fstat(handle).st_size > self._place.size:
            os.ftruncate(handle, 0)
        while block := os.read(handle, _BLOCK):
            self._stop.check()
            self._digest.update(block)
            self._have += len(block)
            self._tell("checking", self._have)

    def _restart(self, handle: int) -> None:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        self._have = 0
        self._digest = _digest(self._place.digest, self._place.size)

    def _fill(self, handle: int) -> None:
        """To the last byte, with as many requests as that takes."""
        patience = self._hub.patience
        attempt = 1
        while (before := self._have) < self._place.size:
            try:
                self._pull(handle)
            except Broken as broken:
                attempt = 1 if self._have > before else attempt
                self._stop.pause(patience.before(attempt, self._told(broken)))
                attempt += 1

    def _told(self, broken: Broken) -> Broken:
        """With how far it came."""
        done, size = self._have / 1e9, self._place.size / 1e9
        where = f"{self._place.path} stopped at {done:.2f} of {size:.2f} GB."
        return Broken(f"{where}  {broken.message}", broken.hint, broken.wait)

    def _pull(self, handle: int) -> None:
        """One request's worth.  Raises Broken unless that reaches the end."""
        place = self._place
        asked = self._hub.body(place.repo, place.commit, place.path, (self._have, None))
        self._tell("loading", self._have)
        with Stream(asked, self._stop, self._hub.patience) as stream:
            if stream.total not in (None, place.size):
                raise Broken(f"The hub says {place.size} bytes and sends {stream.total}.")
            if stream.start > self._have:
                raise Broken("The server skips bytes.")
            skip = self._have - stream.start  # a server without Range begins anew; we need not
            for chunk in stream:
                fresh = chunk[skip:]
                skip = max(0, skip - len(chunk))
                self._throttle.take(len(chunk), self._stop)
                if fresh:
                    self._append(handle, fresh)
        if self._have < place.size:
            raise Broken("The connection ended early.")

    def _append(self, handle: int, chunk: bytes) -> None:
        if self._have == 0 and not chunk.startswith(_MAGIC[: len(chunk)]):
            raise _not_gguf(self._place.path, chunk)
        chunk = chunk[: self._place.size - self._have]
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(handle, rest) :]
        self._digest.update(chunk)
        self._have += len(chunk)
        self._tell("loading", self._have)


def _digest(expected: str, size: int) -> hashlib._Hash:
    """sha256, or what git calls a file of that size."""
    if len(expected) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _open(part: Path) -> int:
    """A partial file that is ours: no link, no device, nobody else's."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(
        part, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0), 0o644
    )
    facts = os.fstat(handle)
    foreign = hasattr(os, "geteuid") and facts.st_uid != os.geteuid()
    if foreign or not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise AccessError(f"{part} is somebody else's.", "Remove it.")
    return handle


def _not_gguf(path: str, chunk: bytes) -> DownloadError | ModelFileError:
    if chunk.lstrip()[:1] == b"<":
        return DownloadError(
            f"A web page came instead of {path}.",
            "Does the network want a login first?  Open any web page in a browser to see.",
        )
    return ModelFileError(f"{path} is not a GGUF file.", "Choose another file.")
