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
from localspec.errors import DownloadError, OfflineError, UsageError
from localspec.models import safe_names
from localspec.models.hub import hub_errors
from localspec.models.hub.cancellation import (
    CancelToken,
    RetryableError,
    RetryPolicy,
    retry,
    run_cancellable,
)
from localspec.models.hub.response_stream import RangeRequest, ResponseStream
from localspec.models.reference import RepoFile
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from localspec.models.gguf.header import Header

_T = TypeVar("_T")

DEFAULT_ENDPOINT = "https://huggingface.co"
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_HEADER_STEP_BYTES = 1 << 20
_HEADER_REQUEST_BYTES = 20_000_000
"""Bytes asked for at once: the largest vocabularies so far take 16 MB."""
_MAX_HEADER_BYTES = 128 << 20
_MAX_TEXT_LENGTH = 100


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """A repository at one commit.  Files with names that could harm are left out."""

    repo: str
    revision: str
    """The commit."""
    files: tuple[RepoFile, ...]
    licence: str | None = None
    gated: bool = False
    base_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HubSearchResult:
    """A repository that a search found."""

    repo: str
    downloads: int
    likes: int
    updated: datetime | None
    gated: bool


@dataclass(frozen=True, slots=True)
class HubFileMetadata:
    """One file at one commit, as the hub has it."""

    commit: str
    size: int
    digest: str
    """sha256, or git's own sha1 for a small file that git keeps."""


class HubClient:
    """A model hub, or a mirror of one.  Raises OfflineError, without a socket, where offline."""

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool = False,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        chosen = endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        self.endpoint = chosen.rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            raise UsageError(
                f"{self.endpoint!r} is not an address.", f"It is like {DEFAULT_ENDPOINT}."
            )
        self.offline = offline or config.load_lenient().offline
        self.retry_policy = retry_policy or RetryPolicy()
        self._token = token

    def list_files(
        self, repo: str, revision: str | None = None, cancel: CancelToken | None = None
    ) -> RepoInfo:
        """What the repository holds.  One request."""
        _check_names(repo, revision)
        info = self._call_library(lambda: self._fetch_repo_info(repo, revision), repo, cancel)
        card = info.card_data or {}
        return RepoInfo(
            repo=repo,
            revision=_check_commit(info.sha, self.endpoint),
            files=tuple(_safe_files(info.siblings or ())),
            licence=_read_text(card.get("license_name") or card.get("license")),
            gated=bool(info.gated),
            base_models=_read_texts(card.get("base_model")),
        )

    def get_file_metadata(
        self, repo: str, revision: str, path: str, cancel: CancelToken | None = None
    ) -> HubFileMetadata:
        """One file's commit, size and digest.  One HEAD request."""
        _check_names(repo, revision)
        safe_names.check_gguf_path(path)
        return self._call_library(
            lambda: self._fetch_file_metadata(repo, revision, path), repo, cancel
        )

    def read_header(
        self, repo: str, revision: str, file: str, cancel: CancelToken | None = None
    ) -> Header:
        """A file's header, of which as little as possible is read: 1-2 requests."""
        _check_names(repo, revision)
        safe_names.check_gguf_path(file)
        where, data, still = (repo, revision, file), bytearray(), cancel or CancelToken()
        return retry(lambda: self._fetch_header(where, data, still), still, self.retry_policy)

    def search(
        self, text: str, limit: int = 20, cancel: CancelToken | None = None
    ) -> tuple[HubSearchResult, ...]:
        """GGUF repositories that match, the most downloaded first.  One request."""
        most = max(1, min(limit, _MAX_TEXT_LENGTH))
        found = self._call_library(
            lambda: self._fetch_search_results(text[:200], most), text, cancel
        )
        return tuple(filter(None, map(_parse_search_result, found)))[:most]

    def build_request(
        self, repo: str, revision: str, path: str, span: tuple[int, int | None]
    ) -> RangeRequest:
        """What to give a Stream for these bytes of a file."""
        self.require_online()
        where = f"{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
        start, end = span
        headers = self._headers()
        return RangeRequest(self.endpoint, repo, f"{self.endpoint}/{where}", headers, start, end)

    def require_online(self) -> None:
        """Raise OfflineError where the network is not to be used."""
        if self.offline:
            said = config.resolve().settings["network.offline"]
            by = f"{said.origin_text} says so (network.offline). What is on disk works without."
            hint = by if said.current else hub_errors.OFFLINE_HINT
            raise OfflineError("The network is turned off.", hint)

    def _call_library(self, call: Callable[[], _T], repo: str, cancel: CancelToken | None) -> _T:
        self.require_online()

        def explained() -> _T:
            _configure_library()
            try:
                return call()
            except Exception as error:
                raise hub_errors.translate_error(error, self.endpoint, repo) from error

        still, patience = cancel or CancelToken(), self.retry_policy
        seconds = patience.connect_timeout + 2 * patience.stall_timeout
        return retry(lambda: run_cancellable(explained, still, seconds), still, patience)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

        return build_hf_headers(
            token=self._token, library_name="localspec", library_version=__version__
        )

    def _fetch_repo_info(self, repo: str, revision: str | None) -> Any:
        from huggingface_hub import HfApi  # noqa: PLC0415  200 ms, only where it is needed

        api = HfApi(endpoint=self.endpoint, token=self._token, headers=self._headers())
        return api.model_info(
            repo, revision=revision, files_metadata=True, timeout=self.retry_policy.stall_timeout
        )

    def _fetch_file_metadata(self, repo: str, revision: str, path: str) -> HubFileMetadata:
        from huggingface_hub import get_hf_file_metadata  # noqa: PLC0415

        asked = self.build_request(repo, revision, path, (0, None))
        said = get_hf_file_metadata(
            asked.url,
            token=self._token,
            timeout=self.retry_policy.stall_timeout,
            headers=asked.headers,
            endpoint=self.endpoint,
        )
        if said.commit_hash is None or said.etag is None:
            raise hub_errors.not_a_hub_error(self.endpoint)
        if not _DIGEST.fullmatch(said.etag):
            raise DownloadError(
                f"The hub gives no checksum for {path}.", "It could not be verified: not fetched."
            )
        commit = _check_commit(said.commit_hash, self.endpoint)
        size = said.size if said.size is not None else self._fetch_file_size(repo, commit, path)
        return HubFileMetadata(commit, size, said.etag)

    def _fetch_file_size(self, repo: str, commit: str, path: str) -> int:
        """Where a mirror's HEAD does not tell, its first byte does."""
        asked = self.build_request(repo, commit, path, (0, 1))
        with ResponseStream(asked, CancelToken(), self.retry_policy) as stream:
            if stream.file_size is None:
                raise DownloadError(f"The hub does not say how large {path} is.")
            return stream.file_size

    def _fetch_header(
        self, where: tuple[str, str, str], data: bytearray, cancel: CancelToken
    ) -> Header:
        """One body, parsed at 1, 2, 4, … MiB until its header is whole; then left."""
        while True:
            end = max(_HEADER_REQUEST_BYTES, 2 * len(data))
            with ResponseStream(
                self.build_request(*where, (len(data), end)), cancel, self.retry_policy
            ) as stream:
                if stream.file_size is None:
                    raise DownloadError("The hub does not say how large the file is.")
                if stream.start != len(data):
                    data.clear()
                needed = max(_HEADER_STEP_BYTES, 2 * len(data))
                for chunk in stream:
                    data += chunk
                    if len(data) >= needed:
                        found = _try_parse_header(data, stream.file_size)
                        if not isinstance(found, int):
                            return found
                        needed = max(found, 2 * len(data))
            found = _try_parse_header(data, stream.file_size)
            if not isinstance(found, int):
                return found
            if len(data) < min(end, stream.file_size):
                raise RetryableError("The connection ended within the header.")

    def _fetch_search_results(self, text: str, limit: int) -> list[Any]:
        from huggingface_hub.utils import get_session, hf_raise_for_status  # noqa: PLC0415

        answer = get_session().get(  # the library's own search has no time limit
            f"{self.endpoint}/api/models",
            params={"search": text, "filter": "gguf", "sort": "downloads", "limit": str(limit)},
            headers=self._headers(),
            timeout=self.retry_policy.stall_timeout,
        )
        hf_raise_for_status(answer)
        found = answer.json()
        if not isinstance(found, list):
            raise ValueError("not a list")
        return found


def _configure_library() -> None:
    """No telemetry, no Xet and its threads, no bars, and no words of its own on stderr."""
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    from huggingface_hub.utils.logging import get_logger  # noqa: PLC0415  it reads them now

    logger = get_logger()  # with its own handler, which would write into a screen
    logger.handlers[:] = [NullHandler()]
    logger.propagate = False


def _try_parse_header(data: bytearray, size: int) -> Header | int:
    """The header, or how many bytes it needs.  Raises ModelFileError where it is none."""
    from localspec.models.gguf import header  # noqa: PLC0415

    try:
        return header.parse(bytes(data), size)
    except header.IncompleteHeaderError as more:
        if more.needed_bytes > min(size, _MAX_HEADER_BYTES) or len(data) >= size:
            raise DownloadError("The header is too large, or the file is cut short.") from more
        return more.needed_bytes


def _check_names(repo: str, revision: str | None) -> None:
    safe_names.check_repo(repo)
    if revision is not None:
        safe_names.check_revision(revision)


def _check_commit(said: object, endpoint: str) -> str:
    if not isinstance(said, str) or not safe_names.COMMIT_HASH.fullmatch(said):
        raise hub_errors.not_a_hub_error(endpoint)
    return said


def _safe_files(siblings: Iterable[Any]) -> Iterable[RepoFile]:
    for file in siblings:
        sha256 = file.lfs.sha256 if file.lfs else None
        if file.size is not None and safe_names.is_safe_path(file.rfilename):
            yield RepoFile(file.rfilename, file.size, sha256)


def _parse_search_result(entry: Any) -> HubSearchResult | None:
    """None for an entry that does not make sense."""
    try:
        repo = str(entry["id"])
        safe_names.check_repo(repo)
        updated = entry.get("lastModified")
        when = datetime.fromisoformat(updated) if updated else None
        downloads, likes = int(entry.get("downloads") or 0), int(entry.get("likes") or 0)
        return HubSearchResult(repo, downloads, likes, when, bool(entry.get("gated")))
    except (KeyError, TypeError, ValueError, AttributeError, UsageError):
        return None


def _read_text(said: object) -> str | None:
    return sanitize(said, multiline=False)[:_MAX_TEXT_LENGTH] if isinstance(said, str) else None


def _read_texts(said: object) -> tuple[str, ...]:
    """One, several or none: cards have all three."""
    several = said if isinstance(said, list) else [said]
    return tuple(text for text in map(_read_text, several) if text)
