"""Each refusal of the hub and each failure of the network becomes a cause and a next
step.
"""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from huggingface_hub.utils import httpx

from localspec.errors import DownloadError, OfflineError
from localspec.models.hub import network_errors
from localspec.models.hub.cancellation import RetryableError, RetryPolicy

UNVERIFIED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate"
EARLY, LATE = (
    f"{what}: this computer's date is" for what in ("is not valid yet", "has expired")
)
ASKED = ("https://hub.example", "org/m")


def test_how_long_to_wait() -> None:
    for headers, seconds in [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "9" * 400}, 999_999_999),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": "nonsense"}, None),
    ]:
        error = network_errors.error_for_status(429, headers, *ASKED)
        assert isinstance(error, RetryableError) and error.retry_after == seconds
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    error = network_errors.error_for_status(503, {"Retry-After": then}, *ASKED)
    assert isinstance(error, RetryableError) and 30 < (error.retry_after or 0) <= 60


def test_a_failure_of_the_network() -> None:
    for error, kind, words in [
        (httpx.ConnectTimeout("x"), OfflineError, "cannot be reached"),
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"),
            DownloadError,
            "certificate",
        ),
        (
            httpx.ConnectError(f"{UNVERIFIED} is not yet valid (_ssl.c:1)"),
            DownloadError,
            EARLY,
        ),
        (
            httpx.ConnectError(f"{UNVERIFIED} has expired (_ssl.c:1)"),
            DownloadError,
            LATE,
        ),
        (httpx.RemoteProtocolError("x"), RetryableError, "lost"),
        (RuntimeError("x"), DownloadError, "RuntimeError"),
    ]:
        meant = network_errors.network_error(error, "https://hub.example")
        assert type(meant) is kind and words in meant.message and meant.hint


def test_patience_doubles_and_ends() -> None:
    patience = RetryPolicy(max_attempts=4, first_delay=1, max_delay=3)
    broken = RetryableError("x")
    assert [patience.delay_before_retry(n, broken) for n in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(RetryableError):
        patience.delay_before_retry(4, broken)
    assert patience.delay_before_retry(1, RetryableError("x", retry_after=20)) == 20
    with pytest.raises(RetryableError):
        patience.delay_before_retry(1, RetryableError("x", retry_after=2000))
