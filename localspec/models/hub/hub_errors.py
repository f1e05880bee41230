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
LOGIN_HINT = "The network may require a login: open any web page in a browser to see."


def network_error(error: Exception, endpoint: str) -> LocalspecError:
    """The error to raise instead; RetryableError if a retry may help."""
    from huggingface_hub.utils import httpx  # noqa: PLC0415  slow

    if isinstance(error, LocalspecError):
        return error
    if "CERTIFICATE" in str(error):
        return _certificate_error(str(error), endpoint)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return OfflineError(f"{endpoint} cannot be reached.", OFFLINE_HINT)
    if isinstance(error, httpx.TransportError):
        is_stalled = isinstance(error, httpx.TimeoutException)
        reason = "The hub does not respond." if is_stalled else "The connection was lost."
        return RetryableError(reason)
    return DownloadError(f"The request to the hub failed: {type(error).__name__}.", OFFLINE_HINT)


def error_for_status(
    status: int, headers: Mapping[str, str], endpoint: str, repo: str
) -> LocalspecError:
    """The error for an HTTP status, and the hub's error code among the headers."""
    code = headers.get("X-Error-Code", "")
    page = f"{endpoint}/{repo}"
    if code == "GatedRepo":
        return AccessDeniedError(
            f"{repo} is gated: its owner requires you to accept terms first.",
            f"Open {page}, accept them, then log in with `hf auth login` or set HF_TOKEN.",
        )
    not_found = {
        "RevisionNotFound": (
            f"{repo} has no such revision.",
            f"See {page}/tree/main, or omit the revision.",
        ),
        "EntryNotFound": (f"{repo} has no such file.", f"See {page}/tree/main."),
        "RepoNotFound": (
            f"The hub has no {repo}, or it is private.",
            "Check the name; for a private one, log in with `hf auth login` or set HF_TOKEN.",
        ),
    }
    if status == 404 or code in not_found:
        return NotFoundError(*not_found.get(code, not_found["RepoNotFound"]))
    if status in (401, 403):
        return AccessDeniedError(
            f"The hub denies access to {repo} ({status}).",
            "Log in again with `hf auth login`, or check HF_TOKEN.",
        )
    message = f"The hub returned status {status}."
    if status in (408, 425, 429) or status >= 500:
        return RetryableError(message, retry_after=_retry_after(headers))
    return DownloadError(message, f"See {page}.")


def not_a_hub_error(endpoint: str) -> DownloadError:
    """For example a captive portal, which answers all requests with its login page."""
    return DownloadError(f"The server at {endpoint} is not a model hub.", LOGIN_HINT)


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
