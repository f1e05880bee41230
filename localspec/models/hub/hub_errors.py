"""What the hub's refusals, and the network's, mean for a person."""

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

OFFLINE_HINT = "Connect and try again; what is on disk works without."
_RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""Answers that say `later`."""


def translate_error(error: Exception, endpoint: str, repo: str) -> LocalspecError:
    """The error to raise instead; Broken where another try may help."""
    from huggingface_hub.errors import (  # noqa: PLC0415  200 ms, only where it is needed
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalspecError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return OfflineError("The network is turned off (HF_HUB_OFFLINE).", OFFLINE_HINT)
    if isinstance(error, GatedRepoError):
        return gated_error(endpoint, repo)
    if isinstance(error, RevisionNotFoundError):
        return NotFoundError(
            f"{repo} has no such revision.", f"See {endpoint}/{repo}/tree/main, or leave it out."
        )
    if isinstance(error, HfHubHTTPError):
        response = error.response
        code = response.headers.get("X-Error-Code", "")
        return error_for_status(response.status_code, response.headers, (endpoint, repo, code))
    return _network_error(error, endpoint)


def error_for_status(
    status_code: int, headers: Mapping[str, str], context: tuple[str, str, str]
) -> LocalspecError:
    """What an answer's status means; `asked` is the endpoint, the repository and the hub's word."""
    endpoint, repo, word = context
    if word == "GatedRepo":
        return gated_error(endpoint, repo)
    if word == "EntryNotFound":
        return NotFoundError(f"{repo} has no such file.", f"See {endpoint}/{repo}/tree/main.")
    if status_code == 404 or word == "RepoNotFound":
        return NotFoundError(
            f"The hub has no {repo}, or it is private.",
            "Check the name; for a private one, log in with `hf auth login` or set HF_TOKEN.",
        )
    if status_code in (401, 403):
        return AccessDeniedError(
            f"The hub does not let you have {repo} ({status_code}).",
            "Log in again with `hf auth login`, or check HF_TOKEN.",
        )
    if status_code in _RETRYABLE_STATUSES or status_code >= 500:
        return RetryableError(f"The hub answers {status_code}.", retry_after=_retry_after(headers))
    return DownloadError(f"The hub answers {status_code}.", f"See {endpoint}/{repo}.")


def gated_error(endpoint: str, repo: str) -> AccessDeniedError:
    return AccessDeniedError(
        f"{repo} is gated: its owner asks you to accept terms first.",
        f"Open {endpoint}/{repo}, accept them, then log in with `hf auth login` or set HF_TOKEN.",
    )


def not_a_hub_error(endpoint: str) -> DownloadError:
    """Captive portals answer everything with a page of their own."""
    return DownloadError(
        f"What answers at {endpoint} is not a model hub.",
        "Does the network want a login first?  Open any web page in a browser to see.",
    )


def _network_error(error: Exception, endpoint: str) -> LocalspecError:
    from huggingface_hub.utils import httpx  # noqa: PLC0415

    if "CERTIFICATE" in str(error):
        return _certificate_error(str(error), endpoint)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return OfflineError(f"{endpoint} cannot be reached.", OFFLINE_HINT)
    if isinstance(error, httpx.TimeoutException):
        return RetryableError("The hub does not answer.")
    if isinstance(error, httpx.TransportError):
        return RetryableError("The connection was lost.")
    if isinstance(error, (ValueError, KeyError, TypeError)):  # JSON that is none
        return not_a_hub_error(endpoint)
    return DownloadError(f"The hub cannot be asked: {type(error).__name__}.", OFFLINE_HINT)


def _certificate_error(message: str, endpoint: str) -> DownloadError:
    """A clock that stands wrong makes every certificate look too new or too old."""
    now = datetime.now().astimezone()
    today = f"{now.day} {now:%B %Y}"
    for sign, how in (("not yet valid", "is not valid yet"), ("has expired", "has expired")):
        if sign in message:
            return DownloadError(
                f"The certificate of {endpoint} {how}: this computer's date is {today}.",
                "Set the date right, and try again.",
            )
    return DownloadError(
        f"The certificate of {endpoint} is not accepted.",
        "Is this computer's date right?  Does a proxy stand between?",
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait: Retry-After in both its forms, or RateLimit."""
    from huggingface_hub.utils import parse_ratelimit_headers  # noqa: PLC0415

    said = headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    if said:
        try:
            return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None
    limit = parse_ratelimit_headers(headers)
    return None if limit is None else float(limit.reset_in_seconds)
