"""One file of the hub onto this disk: found, resumed, verified, and named last."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import monotonic

from localspec.errors import ChecksumError, LocalspecError, OfflineError
from localspec.models import names, store
from localspec.models.disk import stored, verified
from localspec.models.hub import hubcache
from localspec.models.hub.errand import Stop
from localspec.models.hub.hubcache import Place
from localspec.models.hub.transfer import Throttle, Transfer
from localspec.models.remote import Facts, Hub

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WINDOW = 5.0
"""Seconds over which the rate is taken."""
_PACE = 0.1
"""Seconds between two reports of the same phase."""


class Phase(StrEnum):
    """What a download is doing."""

    WAITING = "waiting"
    CHECKING = "checking"
    LOADING = "loading"
    VERIFYING = "verifying"
    DONE = "done"
    PAUSED = "paused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Job:
    """A file to fetch.  What the catalogue knows of it must agree with the hub."""

    repo: str
    revision: str
    path: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """How far a job is."""

    job: Job
    phase: Phase = Phase.WAITING
    done: int = 0
    """Bytes."""
    total: int | None = None
    rate: float | None = None
    """Bytes a second."""
    eta: float | None = None
    """Seconds."""
    error: LocalspecError | None = None
    path: Path | None = None
    """Where the file lies, when it is done."""


Say = Callable[[State], None]
Heed = Callable[[int], None]
"""Hears how many bytes were read; raises Stopped where nobody wants them any more."""


def fetch(
    hub: Hub,
    job: Job,
    say: Say = lambda _: None,
    *,
    stop: Stop | None = None,
    store_dir: Path | None = None,
    throttle: Throttle | None = None,
) -> Path:
    """The file under its final name, whole and verified.  Raises Stopped when called off.

    What had come by then is kept, and the next call goes on from there.
    """
    _check(job)
    cache = store_dir or hubcache.root()
    stop = stop or Stop()
    teller = _Teller(job, say)
    kept = _kept(cache, job, lambda done: teller.check(done, stop))
    if kept and names.COMMIT.fullmatch(job.revision):
        return teller.done(kept)
    teller.tell("checking", 0)
    try:
        facts = hub.facts(job.repo, job.revision, job.path, stop)
    except OfflineError:
        if kept is None:
            raise
        return teller.done(kept)
    _agree(job, facts)
    place = Place(cache, job.repo, facts.commit, job.path, facts.digest, facts.size)
    teller.total = facts.size
    with hubcache.storing(cache), place.locked(stop, lambda: teller.tell("waiting", 0)):
        place.prepare()
        if not _adopted(place, lambda done: teller.check(done, stop)):
            place.check_room()
            Transfer(hub, place, teller.tell, stop, throttle or Throttle()).run()
            place.publish()
            _remember(place)
        place.refer(job.revision)
    return teller.done(place.pointer)


def _check(job: Job) -> None:
    names.check_repo(job.repo)
    names.check_revision(job.revision)
    names.check_file(job.path)


def _kept(cache: Path, job: Job, heed: Heed) -> Path | None:
    """The file, if it is here, of the right size, and what its digest promises."""
    found = hubcache.kept(cache, job.repo, job.revision, job.path)
    if found is None or job.size not in (None, found.stat().st_size):
        return None
    return found if _is_right(found, job.sha256 or found.resolve().name, heed) else None


def _adopted(place: Place, heed: Heed) -> bool:
    """Whether the right file is here under its final name.  A wrong one is taken away."""
    if not place.adopt():
        return False
    if _is_right(place.pointer, place.digest, heed):
        return True
    place.discard()
    return False


def _is_right(path: Path, digest: str, heed: Heed) -> bool:
    """Others, who check less, may have put it there: it is read once, and that is remembered."""
    about = stored.look(path)
    if not _SHA256.fullmatch(digest) or about is None:
        return about is not None
    if verified.of(verified.known(), about) == digest:
        return True
    if store.digest(path, lambda done, _: heed(done)) != digest:
        return False
    store.mark_verified(path, digest)
    return True


def _remember(place: Place) -> None:
    if _SHA256.fullmatch(place.digest):
        store.mark_verified(place.pointer, place.digest)


def _agree(job: Job, facts: Facts) -> None:
    """Raise ChecksumError where the hub's file is not the one that was meant."""
    size = job.size in (None, facts.size)
    if not size or (job.sha256 is not None and job.sha256 != facts.digest):
        raise ChecksumError(
            f"{job.path} on the hub is not the file that was expected: "
            f"{facts.size} bytes, sha256 {facts.digest[:12]}….",
            f"It may have been replaced.  Look at {job.repo}, and name the file itself to take it.",
        )


class _Teller:
    """Says how far one job is, and how fast; ten times a second at most."""

    def __init__(self, job: Job, say: Say) -> None:
        self.total = job.size
        self._state = State(job, total=job.size)
        self._say = say
        self._said = -_PACE
        self._seen: deque[tuple[float, int]] = deque()

    def tell(self, phase: str, done: int) -> None:
        now = monotonic()
        if phase == Phase.LOADING:
            self._note(now, done)
        same = phase == self._state.phase and self.total == self._state.total
        if same and now - self._said < _PACE:
            return
        self._said = now
        rate = self._rate() if phase == Phase.LOADING else None
        left = None if self.total is None else self.total - done
        eta = left / rate if rate and left is not None else None
        self._state = replace(
            self._state, phase=Phase(phase), done=done, total=self.total, rate=rate, eta=eta
        )
        self._say(self._state)

    def check(self, done: int, stop: Stop) -> None:
        """While a file that is here is read."""
        stop.check()
        self.tell("verifying", done)

    def done(self, path: Path) -> Path:
        size = path.stat().st_size
        job = self._state.job
        self._say(State(job, Phase.DONE, done=size, total=size, path=path))
        return path

    def _note(self, now: float, done: int) -> None:
        if self._seen and done < self._seen[-1][1]:  # a fresh start
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    def _rate(self) -> float | None:
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if end > start else None
