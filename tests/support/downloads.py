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
REPO = "org/m-GGUF"
FILE = "m-Q4_K_M.gguf"
DATA = b"GGUF" + random.Random(1).randbytes(3 * MIB)
SHA256 = hashlib.sha256(DATA).hexdigest()
QUICK = RetryPolicy(
    max_attempts=4,
    first_delay=0.01,
    max_delay=0.02,
    connect_timeout=2.0,
    stall_timeout=1.5,
)


class Downloader:
    """Downloads the hub's file into a cache folder, and shows what is there."""

    def __init__(self, hub: FakeHub, cache: Path) -> None:
        hub.add(REPO, FILE, DATA)
        self.hub = hub
        self.cache = cache
        self.client = HubClient(hub.url, token=False, retry_policy=QUICK)
        self.states: list[DownloadState] = []
        """All that were reported."""

    def job(self, path: str = FILE, ref: str | None = "main") -> DownloadJob:
        """As it is planned now; the hub may not have the file, or lose it later."""
        file = self.hub.repos[REPO].get(path)
        if file is None:
            planned = RepoFile(path, size=1, digest="0" * 64)
        else:
            planned = RepoFile(path, size=len(file.data), digest=file.etag)
        return DownloadJob(REPO, self.hub.commit, planned, ref)

    def fetch(self, job: DownloadJob | None = None) -> Path:
        return download_file(
            self.client,
            job or self.job(),
            self.states.append,
            cache_dir=self.cache,
        )

    # --- the cache

    @property
    def repo_folder(self) -> Path:
        return self.cache / "models--org--m-GGUF"

    @property
    def blob(self) -> Path:
        return self.repo_folder / "blobs" / SHA256

    @property
    def partial(self) -> Path:
        return self.blob.with_name(f"{SHA256}.localspec.part")

    def read_ref(self) -> str:
        """The commit of the branch `main`."""
        return (self.repo_folder / "refs" / "main").read_text()

    def is_whole(self, path: Path) -> bool:
        """Whether it is the hub's file, and no partial file is left."""
        return path.read_bytes() == DATA and not self.partial.exists()

    def list_files(self) -> set[str]:
        """All files except locks and CACHEDIR.TAG."""
        names = set()
        for path in self.cache.rglob("*"):
            name = path.relative_to(self.cache).as_posix()
            if not path.is_dir() and not name.startswith((".locks", "CACHEDIR")):
                names.add(name)
        return names

    def list_final_files(self) -> list[Path]:
        """All files under a name by which they could be loaded."""
        snapshots = self.repo_folder.glob("snapshots/**/*")
        blobs = self.repo_folder.glob("blobs/*")
        found = [*snapshots, *blobs]
        return [path for path in found if path.is_file() and path.suffix != ".part"]

    # --- the requests

    def ranges(self) -> list[str | None]:
        """The Range header of each request for a body."""
        return [request.range for request in self.hub.bodies()]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = monotonic() + seconds
    waiting = threading.Event()
    while not condition():
        assert monotonic() < deadline
        waiting.wait(0.005)
