"""Client of a model hub: file lists, file metadata, remote headers and search."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from localspec import __version__, config
from localspec.errors import AccessDeniedError, DownloadError, OfflineError, UsageError
from localspec.models import reference
from localspec.models.hub.cancellation import (
    CancelToken,
    RetryableError,
    RetryPolicy,
    retry,
)
from localspec.models.hub.network_errors import (
    DEFAULT_ENDPOINT,
    OFFLINE_HINT,
    is_web_address,
    not_a_hub_error,
    trim_address,
)
from localspec.models.hub.response_stream import RangeRequest, ResponseStream
from localspec.models.reference import RepoFile
from localspec.protocol.json_values import JsonError, from_json
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from localspec.models.gguf.header import Header

_T = TypeVar("_T")

_MAX_JSON_BYTES = 64_000_000
"""The largest known list of files has 5 MB."""
_HEADER_REQUEST_BYTES = 20_000_000
"""The largest vocabularies take 16 MB."""
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class RepoInfo(Struct, frozen=True):
    """A repository at one commit."""

    repo: str
    revision: str  # The commit.
    files: tuple[RepoFile, ...]
    licence: str | None = None
    gated: bool = False
    refused_names: tuple[str, ...] = ()
    """The GGUF files that are left out of `files`, because of their names."""


class HubSearchResult(Struct, frozen=True):
    repo: str
    downloads: int
    likes: int
    updated: datetime | None
    gated: bool


class HubLocation(Struct, frozen=True):
    """A file of a repository at a revision."""

    repo: str
    revision: str
    path: str


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
        """`on_wait` receives a sentence while the hub asks to wait.

        The hub does so when a limit of requests is reached.
        """
        self.endpoint = _find_endpoint(endpoint)
        self.offline = offline or config.resolve().get("network.offline")
        self.retry_policy = retry_policy or RetryPolicy()
        self.on_wait = on_wait
        self._token = token

    def list_files(
        self, repo: str, revision: str | None = None, cancel: CancelToken | None = None
    ) -> RepoInfo:
        """The repository's files and metadata.  One request."""
        reference.check_names(repo, revision)
        path = f"/{repo}"
        if revision is not None:
            path += f"/revision/{quote(revision, safe='')}"
        return self._request_json(
            path,
            query={"blobs": "true"},
            parse=lambda info: _parse_repo(repo, info),
            repo=repo,
            cancel=cancel,
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

        return self._request_json(
            "",
            query=query,
            parse=lambda entries: tuple(_parse_results(entries))[:limit],
            repo=text,
            cancel=cancel,
        )

    def read_header(
        self, repo: str, revision: str, file: str, cancel: CancelToken | None = None
    ) -> Header:
        """A file's header; reads as little of the file as possible, in 1-2 requests."""
        reference.check_names(repo, revision)
        reference.check_gguf_path(file)
        location = HubLocation(repo, revision, file)
        token = cancel or CancelToken()
        received = bytearray()  # Kept from attempt to attempt.
        return retry(
            lambda: self._fetch_header(location, received, token),
            cancel=token,
            policy=self.retry_policy,
            on_wait=self.on_wait,
        )

    @contextmanager
    def open_stream(
        self,
        location: HubLocation,
        *,
        start: int,
        end: int | None,
        cancel: CancelToken,
    ) -> Iterator[ResponseStream]:
        """The bytes from `start` to `end` (exclusive; None is the end of the file)."""
        revision = quote(location.revision, safe="")
        path = quote(location.path)
        url = f"{self.endpoint}/{location.repo}/resolve/{revision}/{path}"
        with self._open(
            url, location.repo, start=start, end=end, cancel=cancel
        ) as stream:
            yield stream

    def require_online(self) -> None:
        """Raise OfflineError in offline mode."""
        if not self.offline:
            return
        hint = OFFLINE_HINT
        setting = config.resolve().settings["network.offline"]
        if setting.current:
            source = f"Set by {setting.origin_text} (network.offline)."
            hint = f"{source} Downloaded models still work."
        raise OfflineError("Offline mode is on.", hint)

    @contextmanager
    def _open(
        self,
        url: str,
        repo: str,
        *,
        start: int,
        end: int | None,
        cancel: CancelToken,
    ) -> Iterator[ResponseStream]:
        self.require_online()
        request = RangeRequest(
            endpoint=self.endpoint,
            repo=repo,
            url=url,
            headers=self._request_headers(),
            start=start,
            end=end,
        )
        stream = ResponseStream(request, cancel, self.retry_policy)
        try:
            stream.open()
            yield stream
        finally:
            stream.abandon()

    def _request_headers(self) -> dict[str, str]:
        """The library's headers, with the user's token."""
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415  takes 200 ms to import

        # The library's own handler would write over the screen.
        logging.getLogger("huggingface_hub").handlers[:] = [logging.NullHandler()]
        headers = build_hf_headers(
            token=self._token, library_name="localspec", library_version=__version__
        )
        self._check_token(headers.get("authorization", ""))
        return headers

    def _check_token(self, header: str) -> None:
        """Raise AccessDeniedError for a character that no HTTP header can have."""
        wrong = next((char for char in header if not " " <= char <= "~"), None)
        if wrong is None:
            return
        if isinstance(self._token, str):
            name = "The given token"
        elif os.environ.get("HF_TOKEN"):
            name = "HF_TOKEN"
        else:
            name = "The token of `hf auth login`"
        raise AccessDeniedError(
            f"{name} contains {wrong!a}, which no token does.",
            "Copy the token again, without quotation marks and spaces around it.",
        )

    def _request_json(
        self,
        path: str,
        *,
        query: dict[str, str],
        parse: Callable[[Any], _T],
        repo: str,
        cancel: CancelToken | None,
    ) -> _T:
        """What `parse` makes of the JSON below /api/models.

        A JsonError of `parse` means that the server is no hub.
        """
        token = cancel or CancelToken()
        url = f"{self.endpoint}/api/models{path}?{urlencode(query)}"

        def fetch() -> _T:
            body = bytearray()
            with self._open(url, repo, start=0, end=None, cancel=token) as stream:
                for chunk in stream:
                    body += chunk
                    if len(body) > _MAX_JSON_BYTES:
                        raise not_a_hub_error(self.endpoint)
            try:
                return parse(json.loads(body))
            except (ValueError, RecursionError) as error:
                raise not_a_hub_error(self.endpoint) from error

        return retry(
            fetch, cancel=token, policy=self.retry_policy, on_wait=self.on_wait
        )

    def _fetch_header(
        self, location: HubLocation, received: bytearray, cancel: CancelToken
    ) -> Header:
        """Parse while one body arrives.

        `received` holds the first bytes of the file and keeps those of this attempt.
        """
        from localspec.models.gguf import reader  # noqa: PLC0415

        start = len(received)
        end = start + _HEADER_REQUEST_BYTES
        with self.open_stream(location, start=start, end=end, cancel=cancel) as stream:
            if stream.file_size is None:
                raise DownloadError("The hub gives no size for the file.")
            if stream.start != start:
                received.clear()
            chunks = iter(stream)

            def read_more(start: int, end: int) -> bytes:
                while len(received) < end:
                    chunk = next(chunks, None)
                    if chunk is None:
                        raise RetryableError("The connection ended within the header.")
                    received.extend(chunk)
                return bytes(received[start:end])

            first_bytes = read_more(0, min(64, stream.file_size))
            return reader.parse(first_bytes, stream.file_size, read_more=read_more)


def _find_endpoint(given: str | None) -> str:
    """The address of the hub: the given one, else HF_ENDPOINT's, else Hugging Face's.

    White space and quotation marks around it, as a .env file leaves them, are cut off.
    Raises UsageError, which names where the address is from.
    """
    source = "--endpoint"
    endpoint = trim_address(given or "")
    from_environment = trim_address(os.environ.get("HF_ENDPOINT", ""))
    # The hub's library reads the variable on import, and fails if it is wrong.
    if is_web_address(from_environment):
        os.environ["HF_ENDPOINT"] = from_environment
    elif not from_environment or endpoint:
        os.environ.pop("HF_ENDPOINT", None)
    if not endpoint:
        source = "HF_ENDPOINT"
        endpoint = from_environment
    if not endpoint:
        return DEFAULT_ENDPOINT
    if not is_web_address(endpoint):
        raise UsageError(
            f"{source} is {endpoint!r}, which is not a web address.",
            f"A valid one looks like {DEFAULT_ENDPOINT}.",
        )
    return endpoint


# --- the hub's JSON


class _LfsPointer(Struct, frozen=True):
    sha256: str | None = None


class _ListedFile(Struct, frozen=True):
    """A file in a repository's list."""

    rfilename: str
    size: int | None = None
    lfs: _LfsPointer | None = None
    blob_id: str | None = field(name="blobId", default=None)

    @property
    def digest(self) -> str:
        """The SHA-256 of a large file, the SHA-1 of a small one; empty if unknown."""
        digest = self.blob_id or ""
        if self.lfs is not None and self.lfs.sha256:
            digest = self.lfs.sha256
        return digest if _DIGEST.fullmatch(digest) else ""


class _ListedRepo(Struct, frozen=True):
    """A repository with its list of files."""

    sha: str
    id: str = ""
    siblings: tuple[_ListedFile, ...] | None = None
    card: dict[str, Any] | None = field(name="cardData", default=None)
    """What the repository's owner has written, so of any type."""
    gated: bool | str | None = None  # False, or how access is granted.


class _FoundRepo(Struct, frozen=True):
    """A repository among the results of a search."""

    id: str
    downloads: int | None = None
    likes: int | None = None
    last_modified: datetime | None = field(name="lastModified", default=None)
    gated: bool | str | None = None


def _parse_repo(repo: str, info: Any) -> RepoInfo:
    """Raises JsonError.

    The repository has the hub's own name, also after a renaming.
    """
    listed = from_json(_ListedRepo, info)
    if not reference.COMMIT_HASH.fullmatch(listed.sha):
        raise JsonError("sha", "not a commit")
    files: list[RepoFile] = []
    for file in listed.siblings or ():
        if file.size is None or file.size < 0:
            continue
        if reference.is_safe_path(file.rfilename):
            files.append(RepoFile(file.rfilename, file.size, file.digest))
    if reference.is_repo_id(listed.id):
        repo = listed.id
    return RepoInfo(
        repo=repo,
        revision=listed.sha,
        files=tuple(files),
        licence=_find_licence(listed.card or {}),
        gated=bool(listed.gated),
        refused_names=_find_refused_names(listed.siblings or ()),
    )


def _find_refused_names(listed: Sequence[_ListedFile]) -> tuple[str, ...]:
    """The GGUF files whose names are unsafe, or end in capitals."""
    names = [file.rfilename for file in listed]
    return tuple(
        name
        for name in names
        if name.lower().endswith(".gguf") and not reference.is_safe_gguf_path(name)
    )


def _find_licence(card: Mapping[str, Any]) -> str | None:
    licence = card.get("license_name") or card.get("license")
    if not isinstance(licence, str):
        return None
    return sanitize(licence, multiline=False)[:100]


def _parse_results(entries: Any) -> Iterator[HubSearchResult]:
    """The valid ones. Raises JsonError if there is no list."""
    for entry in from_json(list[Any], entries):
        try:
            found = from_json(_FoundRepo, entry)
            reference.check_names(found.id)
        except (JsonError, UsageError):
            continue
        yield HubSearchResult(
            repo=found.id,
            downloads=found.downloads or 0,
            likes=found.likes or 0,
            updated=found.last_modified,
            gated=bool(found.gated),
        )
