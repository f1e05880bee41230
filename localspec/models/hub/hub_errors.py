"""Maps hub and network errors to user-facing errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from localspec.errors import (
    AccessDeniedError,
    DownloadError,
    LocalspecError,
    NotFoundError,
    OfflineError,
)
from localspec.models.hub.cancellation import RetryableError

OFFLINE_HINT = "Go online and try again. Downloaded models work offline."
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}


def translate_error(error: Exception, endpoint: str, repo: str) -> LocalspecError:
    """The error to raise instead; RetryableError if a retry may help."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415  slow

    if isinstance(error, LocalspecError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return OfflineError("Offline mode is on.", OFFLINE_HINT)
    if isinstance(error, HfHubHTTPError):
        response = error.response
        code = response.headers.get("X-Error-Code", "")
        return error_for_status(response.status_code, response.headers, (endpoint, repo, code))
    return _network_error(error, endpoint)


def error_for_status(
    status_code: int, headers: Mapping[str, str], context: tuple[str, str, str]
) -> LocalspecError:
    """The error for an HTTP status; `context` is endpoint, repository and the hub's error code."""
    endpoint, repo, code = context
    if (error := _error_for_code(code, endpoint, repo)) is not None:
        return error
    if status_code == 404 or code == "RepoNotFound":
        return NotFoundError(
            f"The hub has no {repo}, or it is private.",
            "Check the name; for a private one, log in with `hf auth login` or set HF_TOKEN.",
        )
    if status_code in (401, 403):
        return AccessDeniedError(
            f"The hub denies access to {repo} ({status_code}).",
            "Log in again with `hf auth login`, or check HF_TOKEN.",
        )
    if status_code in _RETRYABLE_STATUSES or status_code >= 500:
        return RetryableError(
            f"The hub returned status {status_code}.", retry_after=_retry_after(headers)
        )
    return DownloadError(f"The hub returned status {status_code}.", f"See {endpoint}/{repo}.")


def _error_for_code(code: str, endpoint: str, repo: str) -> LocalspecError | None:
    if code == "GatedRepo":
        return AccessDeniedError(
            f"{repo} is gated: its owner requires you to accept terms first.",
            f"Open {endpoint}/{repo}, accept them, then log in with `hf auth login` or set "
            "HF_TOKEN.",
        )
    if code == "RevisionNotFound":
        return NotFoundError(
            f"{repo} has no such revision.",
            f"See {endpoint}/{repo}/tree/main, or omit the revision.",
        )
    if code == "EntryNotFound":
        return NotFoundError(f"{repo} has no such file.", f"See {endpoint}/{repo}/tree/main.")
    return None


def not_a_hub_error(endpoint: str) -> DownloadError:
    """For example a captive portal, which answers all requests with its login page."""
    return DownloadError(
        f"The server at {endpoint} is not a model hub.",
        "The network may require a login: open any web page in a browser to see.",
    )


def _network_error(error: Exception, endpoint: str) -> LocalspecError:
    from huggingface_hub.utils import httpx  # noqa: PLC0415

    if "CERTIFICATE" in str(error):
        return _certificate_error(str(error), endpoint)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return OfflineError(f"{endpoint} cannot be reached.", OFFLINE_HINT)
    if isinstance(error, httpx.TimeoutException):
        return RetryableError("The hub does not respond.")
    if isinstance(error, httpx.TransportError):
        return RetryableError("The connection was lost.")
    if isinstance(error, (ValueError, KeyError, TypeError)):  # invalid JSON
        return not_a_hub_error(endpoint)
    return DownloadError(f"The request to the hub failed: {type(error).__name__}.", OFFLINE_HINT)


def _certificate_error(message: str, endpoint: str) -> DownloadError:
    """The message shows today's date: a wrong clock makes certificates seem invalid."""
    now = datetime.now().astimezone()
    today = f"{now.day} {now:%B %Y}"
    for sign, problem in (("not yet valid", "is not valid yet"), ("has expired", "has expired")):
        if sign in message:
            return DownloadError(
                f"The certificate of {endpoint} {problem}: this computer's date is {today}.",
                "Correct the date and try again.",
            )
    return DownloadError(
        f"The certificate of {endpoint} is not accepted.",
        "Check this computer's date, and whether a proxy intercepts connections.",
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After (a number or a date) or the RateLimit headers."""
    from huggingface_hub.utils import parse_ratelimit_headers  # noqa: PLC0415

    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    if value:
        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None
    limit = parse_ratelimit_headers(headers)
    return None if limit is None else float(limit.reset_in_seconds)
