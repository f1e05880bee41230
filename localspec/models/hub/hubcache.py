"""Where files lie in the cache that all users of the hub share, and how one gets its final name."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import AccessError, ChecksumError
from localspec.models import names
from localspec.models.hub.errand import TICK, Stop

PART = ".localspec.part"
"""Ends the name of a file on its way; not `.incomplete`, which other cleaners sweep away."""
_RESERVE = 512 << 20
_FAT = (1 << 32) - 1
"""The most bytes that a file may have on FAT32."""
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache; see bford.info/cachedir.\n"


def root() -> Path:
    """The cache of the hub's library, found as that finds it, without its import."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(name):
            return _expanded(chosen)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(cache) / "huggingface" / "hub"


def folder(cache: Path, repo: str) -> Path:
    """Of one repository."""
    return cache / f"models--{repo.replace('/', '--')}"


def kept(cache: Path, repo: str, revision: str, path: str) -> Path | None:
    """The file under its final name, if it is there; asks nobody."""
    at = folder(cache, repo)
    commit = revision
    if not names.COMMIT.fullmatch(revision):
        try:
            commit = (at / "refs" / revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
    if not names.COMMIT.fullmatch(commit):
        return None
    found = at / "snapshots" / commit / path
    return found if found.is_file() else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one file of one commit lies."""

    cache: Path
    repo: str
    commit: str
    path: str
    digest: str
    size: int

    @property
    def folder(self) -> Path:
        return folder(self.cache, self.repo)

    @property
    def blob(self) -> Path:
        return self.folder / "blobs" / self.digest

    @property
    def part(self) -> Path:
        return self.blob.with_name(self.digest + PART)

    @property
    def pointer(self) -> Path:
        """The final name."""
        return self.folder / "snapshots" / self.commit / self.path

    @contextmanager
    def locked(self, stop: Stop, busy: Callable[[], None]) -> Iterator[None]:
        """Under the hub's own lock of this blob; `busy` while another has it."""
        from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415  200 ms

        lock = self.cache / ".locks" / self.folder.name / f"{self.digest}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(WeakFileLock(lock, timeout=TICK))
                    break
                except TimeoutError:
                    busy()
                    stop.check()
            yield

    def prepare(self) -> None:
        """Make the folders.  Raises AccessError where links in them lead elsewhere."""
        for parent in (self.blob.parent, self.pointer.parent):
            inside = Path(os.path.realpath(self.folder))
            if not Path(os.path.realpath(parent)).is_relative_to(inside):
                raise AccessError(
                    f"{parent} leads out of the cache.", "Remove the link that stands there."
                )
            parent.mkdir(parents=True, exist_ok=True)
        tag = self.cache / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, "ascii")

    def adopt(self) -> bool:
        """Whether the whole file is here already, then under its final name too.

        One that was cut short becomes the beginning of the download.
        """
        for found in (self.blob, self.pointer):
            if not found.is_file():
                continue
            size = found.stat().st_size
            if size == self.size:
                self._point()
                return True
            if size > self.size:  # the hub may be wrong about it: nothing here is thrown away
                raise ChecksumError(
                    f"{found} has {size} bytes, and the hub says {self.size}.",
                    "If it is damaged, remove it and download it again.",
                )
            if found.is_symlink() or self.part.exists():
                found.unlink()
            else:
                os.replace(found, self.part)
        return self._copy_twin()

    def discard(self) -> None:
        """What lies there is wrong."""
        for path in (self.pointer, self.blob):
            path.unlink(missing_ok=True)

    def check_room(self) -> None:
        """Raise AccessError where the rest does not fit on the disk, or the file on its system."""
        have = self.part.stat().st_size if self.part.exists() else 0
        needed = max(0, self.size - have)
        free = shutil.disk_usage(self.part.parent).free
        if needed and free < needed + min(_RESERVE, self.size // 16):
            raise AccessError(
                f"{self.path} needs {_gb(needed)} more, and {self.cache} has {_gb(free)} free.",
                "Free some space, or set HF_HUB_CACHE to a folder on another disk.",
            )
        if self.size > _FAT:
            self._probe(have)

    def publish(self) -> None:
        """The whole, verified part gets its final name; every step leaves a state to go on from."""
        os.replace(self.part, self.blob)
        _settle(self.blob.parent)
        self._point()

    def refer(self, revision: str) -> None:
        """Remember which commit a branch or tag meant."""
        if revision == self.commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        fresh.write_text(self.commit, "ascii")
        os.replace(fresh, ref)

    def _copy_twin(self) -> bool:
        """The same file of another commit, where no links are there that would share it."""
        for twin in (self.folder / "snapshots").glob(f"*/{self.path}"):
            if twin.is_symlink() or twin.stat().st_size != self.size:
                continue
            with twin.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.digest:
                    continue
            self.part.unlink(missing_ok=True)
            try:
                self.part.hardlink_to(twin)
            except (OSError, NotImplementedError):
                shutil.copyfile(twin, self.part)
            self.publish()
            return True
        return False

    def _probe(self, have: int) -> None:
        """FAT32 refuses the length at once; others note it without writing."""
        with self.part.open("ab") as file:
            try:
                file.truncate(self.size)
            finally:
                file.truncate(have)

    def _point(self) -> None:
        """The final name leads to the blob, or is the blob itself where there are no links."""
        if not self.blob.exists() or _same(self.pointer, self.blob):
            return
        fresh = self.pointer.with_name(f"{self.digest[:16]}.{os.getpid()}.tmp")
        with suppress(FileNotFoundError):
            fresh.unlink()
        try:
            if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in {"1", "ON", "YES", "TRUE"}:
                raise NotImplementedError
            fresh.symlink_to(os.path.relpath(self.blob, self.pointer.parent))
            os.replace(fresh, self.pointer)
        except (OSError, NotImplementedError):
            os.replace(self.blob, self.pointer)
        _settle(self.pointer.parent)


@contextmanager
def storing(cache: Path) -> Iterator[None]:
    """What the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise _refusal(error, cache) from error


def _refusal(error: OSError, cache: Path) -> AccessError:
    where = error.filename or cache
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        whose = "Your quota on the disk" if error.errno == errno.EDQUOT else "The disk"
        return AccessError(
            f"{whose} of {cache} is full.",
            "Free some space and try again: it goes on from there.",
        )
    if error.errno == errno.EFBIG:
        return AccessError(
            f"The disk of {cache} cannot hold a file of that size.",
            "FAT32 ends at 4 GB: set HF_HUB_CACHE to a folder on another disk.",
        )
    if error.errno == errno.ELOOP:
        return AccessError(f"{where} is a link.", "Remove it: a download writes to no links.")
    return AccessError(
        f"{where} cannot be written: {error.strerror}.", "Check the disk and its permissions."
    )


def _settle(directory: Path) -> None:
    """Make a rename last through a power loss; Windows has no such call."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
