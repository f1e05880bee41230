"""Client of a model hub: file lists, file metadata, remote headers and search."""

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
"""Bytes per request: the largest vocabularies take 16 MB."""
_MAX_HEADER_BYTES = 128 << 20
_MAX_TEXT_LENGTH = 100
_MAX_SEARCH_RESULTS = 100


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """A repository at one commit.  Files with unsafe names are left out."""

    repo: str
    revision: str
    """The commit."""
    files: tuple[RepoFile, ...]
    licence: str | None = None
    gated: bool = False
    base_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HubSearchResult:
    repo: str
    downloads: int
    likes: int
    updated: datetime | None
    gated: bool


@dataclass(frozen=True, slots=True)
class HubFileMetadata:
    commit: str
    size: int
    digest: str
    """sha256, or git's sha1 for a small file that is stored in git."""


class HubClient:
    """A model hub or a mirror.  In offline mode, requests raise OfflineError without a socket."""

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool = False,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        endpoint = endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        self.endpoint = endpoint.rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            raise UsageError(
                f"{self.endpoint!r} is not a web address.",
                f"A valid one looks like {DEFAULT_ENDPOINT}.",
            )
        self.offline = offline or config.load_lenient().offline
        self.retry_policy = retry_policy or RetryPolicy()
        self._token = token

    def list_files(
        self, repo: str, revision: str | None = None, cancel: CancelToken | None = None
    ) -> RepoInfo:
        """The repository's files and metadata.  One request."""
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
        """One HEAD request."""
        _check_names(repo, revision)
        safe_names.check_gguf_path(path)
        return self._call_library(
            lambda: self._fetch_file_metadata(repo, revision, path), repo, cancel
        )

    def read_header(
        self, repo: str, revision: str, file: str, cancel: CancelToken | None = None
    ) -> Header:
        """A file's header; reads as little of the file as possible, in 1-2 requests."""
        _check_names(repo, revision)
        safe_names.check_gguf_path(file)
        cancel = cancel or CancelToken()
        location, data = (repo, revision, file), bytearray()
        return retry(lambda: self._fetch_header(location, data, cancel), cancel, self.retry_policy)

    def search(
        self, text: str, limit: int = 20, cancel: CancelToken | None = None
    ) -> tuple[HubSearchResult, ...]:
        """Matching GGUF repositories, most downloaded first.  One request."""
        limit = max(1, min(limit, _MAX_SEARCH_RESULTS))
        entries = self._call_library(
            lambda: self._fetch_search_results(text[:200], limit), text, cancel
        )
        return tuple(filter(None, map(_parse_search_result, entries)))[:limit]

    def build_request(
        self, repo: str, revision: str, path: str, span: tuple[int, int | None]
    ) -> RangeRequest:
        """The request for bytes `span` of a file, as (start, end); end is exclusive or None."""
        self.require_online()
        url = f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
        start, end = span
        return RangeRequest(self.endpoint, repo, url, self._headers(), start, end)

    def require_online(self) -> None:
        """Raise OfflineError in offline mode."""
        if self.offline:
            setting = config.resolve().settings["network.offline"]
            source = (
                f"Set by {setting.origin_text} (network.offline). Downloaded models still work."
            )
            hint = source if setting.current else hub_errors.OFFLINE_HINT
            raise OfflineError("Offline mode is on.", hint)

    def _call_library(self, call: Callable[[], _T], repo: str, cancel: CancelToken | None) -> _T:
        self.require_online()

        def call_translated() -> _T:
            _configure_library()
            try:
                return call()
            except Exception as error:
                raise hub_errors.translate_error(error, self.endpoint, repo) from error

        cancel = cancel or CancelToken()
        policy = self.retry_policy
        timeout = policy.connect_timeout + 2 * policy.stall_timeout
        return retry(lambda: run_cancellable(call_translated, cancel, timeout), cancel, policy)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

        return build_hf_headers(
            token=self._token, library_name="localspec", library_version=__version__
        )

    def _fetch_repo_info(self, repo: str, revision: str | None) -> Any:
        from huggingface_hub import HfApi  # noqa: PLC0415  takes 200 ms to import

        api = HfApi(endpoint=self.endpoint, token=self._token, headers=self._headers())
        return api.model_info(
            repo, revision=revision, files_metadata=True, timeout=self.retry_policy.stall_timeout
        )

    def _fetch_file_metadata(self, repo: str, revision: str, path: str) -> HubFileMetadata:
        from huggingface_hub import get_hf_file_metadata  # noqa: PLC0415

        request = self.build_request(repo, revision, path, (0, None))
        metadata = get_hf_file_metadata(
            request.url,
            token=self._token,
            timeout=self.retry_policy.stall_timeout,
            headers=request.headers,
            endpoint=self.endpoint,
        )
        if metadata.commit_hash is None or metadata.etag is None:
            raise hub_errors.not_a_hub_error(self.endpoint)
        if not _DIGEST.fullmatch(metadata.etag):
            raise DownloadError(
                f"The hub gives no checksum for {path}.",
                "The file cannot be verified, so it was not downloaded.",
            )
        commit = _check_commit(metadata.commit_hash, self.endpoint)
        size = metadata.size
        if size is None:
            size = self._fetch_file_size(repo, commit, path)
        return HubFileMetadata(commit, size, metadata.etag)

    def _fetch_file_size(self, repo: str, commit: str, path: str) -> int:
        """For mirrors whose HEAD has no size: from the answer to a request for one byte."""
        request = self.build_request(repo, commit, path, (0, 1))
        with ResponseStream(request, CancelToken(), self.retry_policy) as stream:
            if stream.file_size is None:
                raise DownloadError(f"The hub gives no size for {path}.")
            return stream.file_size

    def _fetch_header(
        self, location: tuple[str, str, str], data: bytearray, cancel: CancelToken
    ) -> Header:
        """Read one body until its header parses; tries at 1, 2, 4, … MiB.

        `location` is repository, revision and path.  `data` keeps the bytes for a retry.
        """
        while True:
            end = max(_HEADER_REQUEST_BYTES, 2 * len(data))
            with ResponseStream(
                self.build_request(*location, (len(data), end)), cancel, self.retry_policy
            ) as stream:
                if stream.file_size is None:
                    raise DownloadError("The hub gives no size for the file.")
                if stream.start != len(data):
                    data.clear()
                n_needed = max(_HEADER_STEP_BYTES, 2 * len(data))
                for chunk in stream:
                    data += chunk
                    if len(data) >= n_needed:
                        parsed = _try_parse_header(data, stream.file_size)
                        if not isinstance(parsed, int):
                            return parsed
                        n_needed = max(parsed, 2 * len(data))
            parsed = _try_parse_header(data, stream.file_size)
            if not isinstance(parsed, int):
                return parsed
            if len(data) < min(end, stream.file_size):
                raise RetryableError("The connection ended within the header.")

    def _fetch_search_results(self, text: str, limit: int) -> list[Any]:
        from huggingface_hub.utils import get_session, hf_raise_for_status  # noqa: PLC0415

        response = get_session().get(  # the library's own search has no timeout
            f"{self.endpoint}/api/models",
            params={"search": text, "filter": "gguf", "sort": "downloads", "limit": str(limit)},
            headers=self._headers(),
            timeout=self.retry_policy.stall_timeout,
        )
        hf_raise_for_status(response)
        entries = response.json()
        if not isinstance(entries, list):
            raise ValueError("not a list")
        return entries


def _configure_library() -> None:
    """Turn off telemetry, Xet and its threads, progress bars, and logging to stderr."""
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    from huggingface_hub.utils.logging import get_logger  # noqa: PLC0415  reads the variables on import

    logger = get_logger()  # its own handler would write over the screen
    logger.handlers[:] = [NullHandler()]
    logger.propagate = False


def _try_parse_header(data: bytearray, size: int) -> Header | int:
    """The header, or the number of bytes that it needs.  Raises ModelFileError if it is invalid."""
    from localspec.models.gguf import header  # noqa: PLC0415

    try:
        return header.parse(bytes(data), size)
    except header.IncompleteHeaderError as error:
        if error.needed_bytes > min(size, _MAX_HEADER_BYTES) or len(data) >= size:
            raise DownloadError("The header is too large, or the file is truncated.") from error
        return error.needed_bytes


def _check_names(repo: str, revision: str | None) -> None:
    safe_names.check_repo(repo)
    if revision is not None:
        safe_names.check_revision(revision)


def _check_commit(commit: object, endpoint: str) -> str:
    if not isinstance(commit, str) or not safe_names.COMMIT_HASH.fullmatch(commit):
        raise hub_errors.not_a_hub_error(endpoint)
    return commit


def _safe_files(siblings: Iterable[Any]) -> Iterable[RepoFile]:
    for file in siblings:
        sha256 = file.lfs.sha256 if file.lfs else None
        if file.size is not None and safe_names.is_safe_path(file.rfilename):
            yield RepoFile(file.rfilename, file.size, sha256)


def _parse_search_result(entry: Any) -> HubSearchResult | None:
    """None for an invalid entry."""
    try:
        repo = str(entry["id"])
        safe_names.check_repo(repo)
        updated = entry.get("lastModified")
        updated_at = datetime.fromisoformat(updated) if updated else None
        downloads, likes = int(entry.get("downloads") or 0), int(entry.get("likes") or 0)
        return HubSearchResult(repo, downloads, likes, updated_at, bool(entry.get("gated")))
    except (KeyError, TypeError, ValueError, AttributeError, UsageError):
        return None


def _read_text(value: object) -> str | None:
    return sanitize(value, multiline=False)[:_MAX_TEXT_LENGTH] if isinstance(value, str) else None


def _read_texts(value: object) -> tuple[str, ...]:
    """Model cards hold one text, a list of texts or none."""
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in map(_read_text, values) if text)
