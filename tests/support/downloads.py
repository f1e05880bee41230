"""A hub, a client of it and an empty cache, for tests of downloads."""

import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.cancellation import RetryPolicy
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadState, download_file
from localspec.models.reference import RepoFile
from tests.support.fake_hub import FakeHub

MIB = 1 << 20
REPO, FILE = "org/m-GGUF", "m-Q4_K_M.gguf"
DATA = b"GGUF" + random.Random(1).randbytes(3 * MIB)
SHA256 = hashlib.sha256(DATA).hexdigest()
QUICK = RetryPolicy(
    max_attempts=4,
    first_delay=0.01,
    max_delay=0.02,
    connect_timeout=2.0,
    stall_timeout=1.5,
)


class Desk:
    def __init__(self, hub: FakeHub, store: Path) -> None:
        hub.add(REPO, FILE, DATA)
        self.hub = hub
        self.store = store
        self.client = HubClient(hub.url, token=False, retry_policy=QUICK)
        self.said: list[DownloadState] = []

    def job(self, path: str = FILE, ref: str | None = "main") -> DownloadJob:
        """As it is planned now; a file that the hub does not have is one that it has
        lost.
        """
        file = self.hub.repos[REPO].get(path)
        size, digest = (len(file.data), file.etag) if file else (1, "0" * 64)
        return DownloadJob(REPO, self.hub.commit, RepoFile(path, size, digest), ref)

    def fetch(self, job: DownloadJob | None = None) -> Path:
        job = job or self.job()
        return download_file(self.client, job, self.said.append, cache_dir=self.store)

    @property
    def folder(self) -> Path:
        return self.store / "models--org--m-GGUF"

    @property
    def blob(self) -> Path:
        return self.folder / "blobs" / SHA256

    @property
    def part(self) -> Path:
        return self.blob.with_name(f"{SHA256}.localspec.part")

    def files(self) -> set[str]:
        """All files except locks and CACHEDIR.TAG."""
        found = (path for path in self.store.rglob("*") if not path.is_dir())
        names = {path.relative_to(self.store).as_posix() for path in found}
        return {name for name in names if not name.startswith((".locks", "CACHEDIR"))}

    def final(self) -> list[Path]:
        """All files under a name by which they could be loaded."""
        found = [*self.folder.glob("snapshots/**/*"), *self.folder.glob("blobs/*")]
        return [path for path in found if path.is_file() and path.suffix != ".part"]

    def ranges(self) -> list[str | None]:
        return [seen.range for seen in self.hub.bodies()]

    def is_whole(self, path: Path) -> bool:
        return path.read_bytes() == DATA and not self.part.exists()


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = monotonic() + seconds
    waiting = threading.Event()
    while not true():
        assert monotonic() < end
        waiting.wait(0.005)
