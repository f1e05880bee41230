"""Client of a model hub: file lists, file metadata, remote headers and search."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct

from localspec import __version__, config
from localspec.errors import AccessDeniedError, DownloadError, OfflineError, UsageError
from localspec.models import reference
from localspec.models.hub.cancellation import (
    CancelToken,
    RetryableError,
    RetryPolicy,
    retry,
)
from localspec.models.hub.response_stream import (
    OFFLINE_HINT,
    ResponseStream,
    StreamAddress,
    not_a_hub_error,
)
from localspec.models.reference import RepoFile
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from localspec.models.gguf.header import Header

_T = TypeVar("_T")

DEFAULT_ENDPOINT = "https://huggingface.co"
_MAX_JSON_BYTES = 64_000_000  # Of a list of files; the largest known has 5 MB.
_WRONG_FORM = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading an answer of another form raises."""
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
# Bytes per request: the largest vocabularies take 16 MB.
_HEADER_REQUEST_BYTES = 20_000_000


class RepoInfo(Struct, frozen=True):
    """A repository at one commit.  Files with unsafe names are left out."""

    repo: str
    revision: str  # The commit.
    files: tuple[RepoFile, ...]
    licence: str | None = None
    gated: bool = False


class HubSearchResult(Struct, frozen=True):
    repo: str
    downloads: int
    likes: int
    updated: datetime | None
    gated: bool


class HubClient:
    """A model hub or a mirror.

    In offline mode, requests raise OfflineError without a socket.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool = False,
        retry_policy: RetryPolicy | None = None,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`on_wait` receives a sentence while the hub asks to wait (a limit of
        requests).
        """
        endpoint = endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        self.endpoint = endpoint.rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            hint = f"A valid one looks like {DEFAULT_ENDPOINT}."
            raise UsageError(f"{self.endpoint!r} is not a web address.", hint)
        self.offline = offline or config.resolve().get("network.offline")
        self.retry_policy, self.on_wait = retry_policy or RetryPolicy(), on_wait
        self._token = token

    def list_files(
        self, repo: str, revision: str | None = None, cancel: CancelToken | None = None
    ) -> RepoInfo:
        """The repository's files and metadata.  One request."""
        reference.check_names(repo, revision)
        path = f"/{repo}"
        if revision is not None:
            path += f"/revision/{quote(revision, safe='')}"
        query = {"blobs": "true"}
        return self._request(
            path, query, lambda info: _parse_repo(repo, info), repo, cancel
        )

    def read_header(
        self, repo: str, revision: str, file: str, cancel: CancelToken | None = None
    ) -> Header:
        """A file's header; reads as little of the file as possible, in 1-2 requests."""
        reference.check_names(repo, revision)
        reference.check_gguf_path(file)
        cancel = cancel or CancelToken()
        location, data = (repo, revision, file), bytearray()
        policy = self.retry_policy
        return retry(
            lambda: self._fetch_header(location, data, cancel),
            cancel,
            policy,
            self.on_wait,
        )

    def search(
        self, text: str, limit: int = 20, cancel: CancelToken | None = None
    ) -> tuple[HubSearchResult, ...]:
        """Matching GGUF repositories, most downloaded first.  One request."""
        limit = max(1, min(limit, 100))
        query = {
            "search": text[:200],
            "filter": "gguf",
            "sort": "downloads",
            "limit": str(limit),
        }

        def parse(entries: Any) -> tuple[HubSearchResult, ...]:
            if not isinstance(entries, list):
                raise TypeError("not a list")
            return tuple(filter(None, map(_parse_search_result, entries)))[:limit]

        return self._request("", query, parse, text, cancel)

    @contextmanager
    def open_stream(
        self,
        location: tuple[str, str, str],
        start: int,
        end: int | None,
        cancel: CancelToken,
    ) -> Iterator[ResponseStream]:
        """The bytes from `start` to `end` (exclusive; None is the end of the file).

        `location` is repository, revision and path.
        """
        repo, revision, path = location
        url = f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
        with self._open(url, repo, start, end, cancel) as stream:
            yield stream

    def require_online(self) -> None:
        """Raise OfflineError in offline mode."""
        if self.offline:
            setting = config.resolve().settings["network.offline"]
            source = f"Set by {setting.origin_text} (network.offline). "
            hint = (
                source + "Downloaded models still work."
                if setting.current
                else OFFLINE_HINT
            )
            raise OfflineError("Offline mode is on.", hint)

    @contextmanager
    def _open(
        self, url: str, repo: str, start: int, end: int | None, cancel: CancelToken
    ) -> Iterator[ResponseStream]:
        self.require_online()
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415  takes 200 ms to import

        # The library's own handler would write over the screen.
        logging.getLogger("huggingface_hub").handlers[:] = [logging.NullHandler()]
        headers = build_hf_headers(
            token=self._token, library_name="localspec", library_version=__version__
        )
        self._check_token(headers.get("authorization", ""))
        address = StreamAddress(self.endpoint, repo, url, headers)
        stream = ResponseStream(address, start, end, cancel, self.retry_policy)
        try:
            stream.open()
            yield stream
        finally:
            stream.abandon()

    def _check_token(self, header: str) -> None:
        """Raise AccessDeniedError for a character that no HTTP header can have."""
        if wrong := [character for character in header if not " " <= character <= "~"]:
            name = (
                "HF_TOKEN"
                if os.environ.get("HF_TOKEN")
                else "The token of `hf auth login`"
            )
            name = "The given token" if isinstance(self._token, str) else name
            raise AccessDeniedError(
                f"{name} contains {wrong[0]!a}, which no token does.",
                "Copy the token again, without quotation marks and spaces around it.",
            )

    def _request(
        self,
        path: str,
        query: dict[str, str],
        parse: Callable[[Any], _T],
        repo: str,
        cancel: CancelToken | None,
    ) -> _T:
        """What `parse` makes of the JSON below /api/models; its errors mean that it is
        no hub's.
        """
        cancel = cancel or CancelToken()
        url = f"{self.endpoint}/api/models{path}?{urlencode(query)}"

        def fetch() -> _T:
            with self._open(url, repo, 0, None, cancel) as stream:
                body = bytearray()
                for chunk in stream:
                    body += chunk
                    if len(body) > _MAX_JSON_BYTES:
                        raise not_a_hub_error(self.endpoint)
            try:
                return parse(json.loads(body))
            except (*_WRONG_FORM, RecursionError) as error:
                raise not_a_hub_error(self.endpoint) from error

        return retry(fetch, cancel, self.retry_policy, self.on_wait)

    def _fetch_header(
        self, location: tuple[str, str, str], data: bytearray, cancel: CancelToken
    ) -> Header:
        """Parse while one body arrives; `data` keeps its bytes for a retry."""
        from localspec.models.gguf import reader  # noqa: PLC0415

        end = len(data) + _HEADER_REQUEST_BYTES
        with self.open_stream(location, len(data), end, cancel) as stream:
            if stream.file_size is None:
                raise DownloadError("The hub gives no size for the file.")
            if stream.start != len(data):
                data.clear()
            chunks = iter(stream)

            def read_more(start: int, end: int) -> bytes:
                while len(data) < end:
                    if (chunk := next(chunks, None)) is None:
                        raise RetryableError("The connection ended within the header.")
                    data.extend(chunk)
                return bytes(data[start:end])

            first_bytes = read_more(0, min(64, stream.file_size))
            return reader.parse(first_bytes, stream.file_size, read_more=read_more)


def _parse_repo(repo: str, info: Any) -> RepoInfo:
    """Raises one of _WRONG_FORM.

    The repository has the hub's own name, also after a renaming.
    """
    if not reference.COMMIT_HASH.fullmatch(info["sha"]):
        raise ValueError("no commit")
    files = []
    for file in info.get("siblings") or ():
        path, size, lfs = file["rfilename"], file.get("size"), file.get("lfs")
        digest = (
            (lfs if isinstance(lfs, dict) else {}).get("sha256")
            or file.get("blobId")
            or ""
        )
        if isinstance(size, int) and size >= 0 and reference.is_safe_path(path):
            files.append(
                RepoFile(path, size, digest if _DIGEST.fullmatch(digest) else "")
            )
    card = info.get("cardData")
    card = card if isinstance(card, dict) else {}
    own_name = info.get("id")
    is_name = isinstance(own_name, str) and reference.is_repo_id(own_name)
    licence = card.get("license_name") or card.get("license")
    return RepoInfo(
        repo=own_name if is_name else repo,
        revision=info["sha"],
        files=tuple(files),
        licence=sanitize(licence, multiline=False)[:100]
        if isinstance(licence, str)
        else None,
        gated=bool(info.get("gated")),
    )


def _parse_search_result(entry: Any) -> HubSearchResult | None:
    """None for an invalid entry."""
    try:
        repo = str(entry["id"])
        reference.check_names(repo)
        updated = entry.get("lastModified")
        updated_at = datetime.fromisoformat(updated) if updated else None
        downloads, likes = (
            int(entry.get("downloads") or 0),
            int(entry.get("likes") or 0),
        )
        return HubSearchResult(
            repo, downloads, likes, updated_at, bool(entry.get("gated"))
        )
    except (*_WRONG_FORM, UsageError):
        return None
