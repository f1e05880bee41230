"""What the hub says: which files a repository has, what their headers hold, what a search finds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from logging import NullHandler
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from localspec import __version__, config
from localspec.clean import clean
from localspec.errors import DownloadError, OfflineError, UsageError
from localspec.models import names
from localspec.models.hub import refusals
from localspec.models.hub.errand import Broken, Patience, Stop, persist, run
from localspec.models.hub.stream import Request, Stream
from localspec.models.reference import RemoteFile

if TYPE_CHECKING:
    from localspec.models.header import Header

_T = TypeVar("_T")

DEFAULT = "https://huggingface.co"
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_HEADER_STEP = 1 << 20
_HEADER_USUAL = 20_000_000
"""Bytes asked for at once: the largest vocabularies so far take 16 MB."""
_HEADER_MOST = 128 << 20
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit.  Files with names that could harm are left out."""

    repo: str
    revision: str
    """The commit."""
    files: tuple[RemoteFile, ...]
    licence: str | None = None
    gated: bool = False
    base_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A repository that a search found."""

    repo: str
    downloads: int
    likes: int
    updated: datetime | None
    gated: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """One file at one commit, as the hub has it."""

    commit: str
    size: int
    digest: str
    """sha256, or git's own sha1 for a small file that git keeps."""


class Hub:
    """A model hub, or a mirror of one.  Raises OfflineError, without a socket, where offline."""

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool = False,
        patience: Patience | None = None,
    ) -> None:
        chosen = endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT
        self.endpoint = chosen.rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            raise UsageError(f"{self.endpoint!r} is not an address.", f"It is like {DEFAULT}.")
        self.offline = offline or config.so_far().offline
        self.patience = patience or Patience()
        self._token = token

    def files(self, repo: str, revision: str | None = None, stop: Stop | None = None) -> Listing:
        """What the repository holds.  One request."""
        _check(repo, revision)
        info = self._ask(lambda: self._info(repo, revision), repo, stop)
        card = info.card_data or {}
        return Listing(
            repo=repo,
            revision=_commit(info.sha, self.endpoint),
            files=tuple(_files(info.siblings or ())),
            licence=_text(card.get("license_name") or card.get("license")),
            gated=bool(info.gated),
            base_models=_texts(card.get("base_model")),
        )

    def facts(self, repo: str, revision: str, path: str, stop: Stop | None = None) -> Facts:
        """One file's commit, size and digest.  One HEAD request."""
        _check(repo, revision)
        names.check_file(path)
        return self._ask(lambda: self._facts(repo, revision, path), repo, stop)

    def header(self, repo: str, revision: str, file: str, stop: Stop | None = None) -> Header:
        """A file's header, of which as little as possible is read: 1-2 requests."""
        _check(repo, revision)
        names.check_file(file)
        where, data, still = (repo, revision, file), bytearray(), stop or Stop()
        return persist(lambda: self._header(where, data, still), still, self.patience)

    def search(self, text: str, limit: int = 20, stop: Stop | None = None) -> tuple[Found, ...]:
        """GGUF repositories that match, the most downloaded first.  One request."""
        most = max(1, min(limit, _LONGEST))
        found = self._ask(lambda: self._search(text[:200], most), text, stop)
        return tuple(filter(None, map(_found, found)))[:most]

    def body(self, repo: str, revision: str, path: str, span: tuple[int, int | None]) -> Request:
        """What to give a Stream for these bytes of a file."""
        self.check_online()
        where = f"{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
        start, end = span
        headers = self._headers()
        return Request(self.endpoint, repo, f"{self.endpoint}/{where}", headers, start, end)

    def check_online(self) -> None:
        """Raise OfflineError where the network is not to be used."""
        if self.offline:
            said = config.look().held["network.offline"]
            by = f"{said.where} says so (network.offline). What is on disk works without."
            hint = by if said.now else refusals.OFFLINE_HINT
            raise OfflineError("The network is turned off.", hint)

    def _ask(self, call: Callable[[], _T], repo: str, stop: Stop | None) -> _T:
        self.check_online()

        def explained() -> _T:
            _settle_library()
            try:
                return call()
            except Exception as error:
                raise refusals.explain(error, self.endpoint, repo) from error

        still, patience = stop or Stop(), self.patience
        seconds = patience.connect + 2 * patience.stall
        return persist(lambda: run(explained, still, seconds), still, patience)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

        return build_hf_headers(
            token=self._token, library_name="localspec", library_version=__version__
        )

    def _info(self, repo: str, revision: str | None) -> Any:
        from huggingface_hub import HfApi  # noqa: PLC0415  200 ms, only where it is needed

        api = HfApi(endpoint=self.endpoint, token=self._token, headers=self._headers())
        return api.model_info(
            repo, revision=revision, files_metadata=True, timeout=self.patience.stall
        )

    def _facts(self, repo: str, revision: str, path: str) -> Facts:
        from huggingface_hub import get_hf_file_metadata  # noqa: PLC0415

        asked = self.body(repo, revision, path, (0, None))
        said = get_hf_file_metadata(
            asked.url,
            token=self._token,
            timeout=self.patience.stall,
            headers=asked.headers,
            endpoint=self.endpoint,
        )
        if said.commit_hash is None or said.etag is None:
            raise refusals.not_a_hub(self.endpoint)
        if not _DIGEST.fullmatch(said.etag):
            raise DownloadError(
                f"The hub gives no checksum for {path}.", "It could not be verified: not fetched."
            )
        commit = _commit(said.commit_hash, self.endpoint)
        size = said.size if said.size is not None else self._size(repo, commit, path)
        return Facts(commit, size, said.etag)

    def _size(self, repo: str, commit: str, path: str) -> int:
        """Where a mirror's HEAD does not tell, its first byte does."""
        asked = self.body(repo, commit, path, (0, 1))
        with Stream(asked, Stop(), self.patience) as stream:
            if stream.total is None:
                raise DownloadError(f"The hub does not say how large {path} is.")
            return stream.total

    def _header(self, where: tuple[str, str, str], data: bytearray, stop: Stop) -> Header:
        """One body, parsed at 1, 2, 4, … MiB until its header is whole; then left."""
        while True:
            end = max(_HEADER_USUAL, 2 * len(data))
            with Stream(self.body(*where, (len(data), end)), stop, self.patience) as stream:
                if stream.total is None:
                    raise DownloadError("The hub does not say how large the file is.")
                if stream.start != len(data):
                    data.clear()
                needed = max(_HEADER_STEP, 2 * len(data))
                for chunk in stream:
                    data += chunk
                    if len(data) >= needed:
                        found = _parse(data, stream.total)
                        if not isinstance(found, int):
                            return found
                        needed = max(found, 2 * len(data))
            found = _parse(data, stream.total)
            if not isinstance(found, int):
                return found
            if len(data) < min(end, stream.total):
                raise Broken("The connection ended within the header.")

    def _search(self, text: str, limit: int) -> list[Any]:
        from huggingface_hub.utils import get_session, hf_raise_for_status  # noqa: PLC0415

        answer = get_session().get(  # the library's own search has no time limit
            f"{self.endpoint}/api/models",
            params={"search": text, "filter": "gguf", "sort": "downloads", "limit": str(limit)},
            headers=self._headers(),
            timeout=self.patience.stall,
        )
        hf_raise_for_status(answer)
        found = answer.json()
        if not isinstance(found, list):
            raise ValueError("not a list")
        return found


def _settle_library() -> None:
    """No telemetry, no Xet and its threads, no bars, and no words of its own on stderr."""
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    from huggingface_hub.utils.logging import get_logger  # noqa: PLC0415  it reads them now

    logger = get_logger()  # with its own handler, which would write into a screen
    logger.handlers[:] = [NullHandler()]
    logger.propagate = False


def _parse(data: bytearray, size: int) -> Header | int:
    """The header, or how many bytes it needs.  Raises ModelFileError where it is none."""
    from localspec.models import header  # noqa: PLC0415

    try:
        return header.parse(bytes(data), size)
    except header.Incomplete as more:
        if more.needed > min(size, _HEADER_MOST) or len(data) >= size:
            raise DownloadError("The header is too large, or the file is cut short.") from more
        return more.needed


def _check(repo: str, revision: str | None) -> None:
    names.check_repo(repo)
    if revision is not None:
        names.check_revision(revision)


def _commit(said: object, endpoint: str) -> str:
    if not isinstance(said, str) or not names.COMMIT.fullmatch(said):
        raise refusals.not_a_hub(endpoint)
    return said


def _files(siblings: Iterable[Any]) -> Iterable[RemoteFile]:
    for file in siblings:
        sha256 = file.lfs.sha256 if file.lfs else None
        if file.size is not None and names.is_safe(file.rfilename):
            yield RemoteFile(file.rfilename, file.size, sha256)


def _found(entry: Any) -> Found | None:
    """None for an entry that does not make sense."""
    try:
        repo = str(entry["id"])
        names.check_repo(repo)
        updated = entry.get("lastModified")
        when = datetime.fromisoformat(updated) if updated else None
        downloads, likes = int(entry.get("downloads") or 0), int(entry.get("likes") or 0)
        return Found(repo, downloads, likes, when, bool(entry.get("gated")))
    except (KeyError, TypeError, ValueError, AttributeError, UsageError):
        return None


def _text(said: object) -> str | None:
    return clean(said, multiline=False)[:_LONGEST] if isinstance(said, str) else None


def _texts(said: object) -> tuple[str, ...]:
    """One, several or none: cards have all three."""
    several = said if isinstance(said, list) else [said]
    return tuple(text for text in map(_text, several) if text)
