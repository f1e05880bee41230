"""Maps the hub's statuses and the network's failures to errors with a next step."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from msgspec import Struct

from localspec import config
from localspec.errors import (
    AccessDeniedError,
    DownloadError,
    LocalspecError,
    NotFoundError,
    OfflineError,
)
from localspec.install_hints import login_command
from localspec.models.hub.cancellation import RetryableError
from localspec.sanitize import sanitize

DEFAULT_ENDPOINT = "https://huggingface.co"
OFFLINE_HINT = "Go online and try again. Downloaded models work offline."
LOGIN_HINT = "The network may require a login: open any web page in a browser to see."


class ProxySetting(Struct, frozen=True):
    variable: str  # The environment variable that sets it.
    address: str  # Without the user's name and password.


# --- failures of the network


def network_error(error: Exception, endpoint: str) -> LocalspecError:
    """The error to raise instead; RetryableError if a retry may help."""
    from huggingface_hub.utils import httpx  # noqa: PLC0415  slow

    if isinstance(error, LocalspecError):
        return error
    if "CERTIFICATE" in str(error):
        return _certificate_error(str(error), endpoint)

    unreachable = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
    wrong_setting = (ImportError, ValueError, httpx.InvalidURL)
    proxy = _find_proxy(endpoint)
    if proxy is not None and isinstance(error, unreachable):
        return _unreachable_proxy_error(proxy, endpoint)
    if proxy is not None and isinstance(error, wrong_setting):
        return _invalid_proxy_error(proxy, error)
    if isinstance(error, unreachable):
        return _unreachable_error(endpoint)

    if isinstance(error, httpx.TimeoutException):
        return RetryableError("The hub does not respond.")
    if isinstance(error, httpx.TransportError):
        return RetryableError("The connection was lost.")
    name = type(error).__name__
    return DownloadError(f"The request to the hub failed: {name}.", OFFLINE_HINT)


def not_a_hub_error(endpoint: str) -> DownloadError:
    """For example a captive portal, which answers all requests with its login page."""
    hint = LOGIN_HINT
    source = endpoint_source(endpoint)
    if source:
        hint = f"Check {source}. {LOGIN_HINT}"
    return DownloadError(f"The server at {endpoint} is not a model hub.", hint)


def endpoint_source(endpoint: str) -> str:
    """What set the address of the hub; empty if it is the default."""
    if endpoint == DEFAULT_ENDPOINT:
        return ""
    is_from_environment = trim_address(os.environ.get("HF_ENDPOINT", "")) == endpoint
    if not is_from_environment:
        return "--endpoint"
    return os.environ.get(f"{config.OPTION_PREFIX}HF_ENDPOINT", "HF_ENDPOINT")


def trim_address(text: str) -> str:
    """Without white space and quotation marks around it, as a .env file leaves them."""
    return text.strip("\"'" + string.whitespace).rstrip("/")


def is_web_address(text: str) -> bool:
    if not text.isprintable() or any(char.isspace() for char in text):
        return False
    try:
        url = urlsplit(text)
        _ = url.port  # Raises ValueError for what is no number.
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)


def _unreachable_error(endpoint: str) -> OfflineError:
    source = endpoint_source(endpoint)
    if not source:
        return OfflineError(f"{endpoint} cannot be reached.", OFFLINE_HINT)
    return OfflineError(
        f"{endpoint} of {source} cannot be reached.",
        f"Check {source}, and whether you are online. Downloaded models work offline.",
    )


def _find_proxy(endpoint: str) -> ProxySetting | None:
    """The proxy for an address, in the order in which httpx reads the variables."""
    url = urlsplit(endpoint)
    if proxy_bypass(url.hostname or ""):
        return None
    for name in (f"{url.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            address = os.environ.get(variable)
            if address:
                shown = re.sub(r"//[^/@]*@", "//", address)
                return ProxySetting(variable, sanitize(shown, multiline=False))
    return None


def _unreachable_proxy_error(proxy: ProxySetting, endpoint: str) -> OfflineError:
    name = proxy.variable
    return OfflineError(
        f"{endpoint} cannot be reached through the proxy {proxy.address} of {name}.",
        f"Check the proxy, or unset {name}. Downloaded models work offline.",
    )


def _invalid_proxy_error(proxy: ProxySetting, error: Exception) -> DownloadError:
    reason = "it is no http:// proxy"
    if isinstance(error, ImportError):
        reason = "SOCKS needs the package socksio"
    return DownloadError(
        f"The proxy {proxy.address} of {proxy.variable} cannot be used: {reason}.",
        f"Set {proxy.variable} to an http:// proxy, or unset it.",
    )


def _certificate_error(message: str, endpoint: str) -> DownloadError:
    """The message shows today's date: a wrong clock makes certificates seem invalid."""
    problem = None
    if "not yet valid" in message:
        problem = "is not valid yet"
    elif "has expired" in message:
        problem = "has expired"
    if problem is None:
        hint = "Check this computer's date, and whether a proxy intercepts connections."
        source = endpoint_source(endpoint)
        if source:
            hint = f"Check {source}, the certificates of this computer, and its date."
        return DownloadError(f"The certificate of {endpoint} is not accepted.", hint)
    now = datetime.now().astimezone()
    today = f"{now.day} {now:%B %Y}"
    return DownloadError(
        f"The certificate of {endpoint} {problem}: this computer's date is {today}.",
        "Correct the date and try again.",
    )


# --- refusals of the hub


def error_for_status(
    status: int, headers: Mapping[str, str], endpoint: str, repo: str
) -> LocalspecError:
    """The error for an HTTP status, and the hub's error code among the headers."""
    code = headers.get("X-Error-Code", "")
    page = f"{endpoint}/{repo}"
    if code == "GatedRepo":
        return AccessDeniedError(
            f"{repo} is gated: its owner requires you to accept terms first.",
            f"Open {page}, accept them, then set HF_TOKEN or log in: {login_command()}",
        )
    if code == "RevisionNotFound":
        return NotFoundError(
            f"{repo} has no such revision.",
            f"See {page}/tree/main, or omit the revision.",
        )
    if code == "EntryNotFound":
        return NotFoundError(f"{repo} has no such file.", f"See {page}/tree/main.")
    if code == "RepoNotFound" or status == 404:
        return NotFoundError(
            f"The hub has no {repo}, or it is private.",
            f"Check the name; for a private one, set HF_TOKEN or log in: {login_command()}",
        )
    if status in (401, 403):
        return AccessDeniedError(
            f"The hub denies access to {repo} ({status}).",
            f"Check HF_TOKEN, or log in again: {login_command()}",
        )
    message = f"The hub returned status {status}."
    if status in (408, 425, 429) or status >= 500:
        return RetryableError(message, retry_after=_retry_after(headers))
    return DownloadError(message, f"See {page}.")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After (a number or a date) or the RateLimit headers."""
    from huggingface_hub.utils import parse_ratelimit_headers  # noqa: PLC0415

    value = headers.get("Retry-After", "").strip()
    if not value:
        limit = parse_ratelimit_headers(headers)
        return None if limit is None else float(limit.reset_in_seconds)
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        until = parsedate_to_datetime(value)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
