"""Each refusal of the hub and each failure of the network has a cause and a next step."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from huggingface_hub.utils import httpx

from localspec.errors import DownloadError, LocalspecError, OfflineError
from localspec.models.hub.cancellation import RetryableError, RetryPolicy
from localspec.models.hub.network_errors import (
    DEFAULT_ENDPOINT,
    error_for_status,
    network_error,
    not_a_hub_error,
)

HUB = "https://hub.example"
UNVERIFIED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate"

RETRY_HEADERS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"Retry-After": "7"}, 7),
    ({"Retry-After": "soon"}, None),
    ({"Retry-After": "-5"}, None),
    ({"Retry-After": "9" * 400}, 999_999_999),
    ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    ({"RateLimit": '"api";r=0;t=55'}, 55),
    ({"RateLimit": "nonsense"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), RETRY_HEADERS)
def test_the_headers_of_a_busy_hub_say_how_long_to_wait(
    headers: dict[str, str], seconds: float | None
) -> None:
    error = error_for_status(429, headers, HUB, "org/m")

    assert isinstance(error, RetryableError)
    assert error.retry_after == seconds


def test_a_date_says_how_long_to_wait() -> None:
    in_a_minute = datetime.now(UTC) + timedelta(seconds=60)
    headers = {"Retry-After": format_datetime(in_a_minute, usegmt=True)}

    error = error_for_status(503, headers, HUB, "org/m")

    assert isinstance(error, RetryableError)
    assert error.retry_after is not None
    assert 30 < error.retry_after <= 60


FAILURES: list[tuple[Exception, type[LocalspecError], str]] = [
    (httpx.ConnectTimeout("x"), OfflineError, "cannot be reached"),
    (
        httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"),
        DownloadError,
        "certificate",
    ),
    (
        httpx.ConnectError(f"{UNVERIFIED} is not yet valid (_ssl.c:1)"),
        DownloadError,
        "is not valid yet: this computer's date is",
    ),
    (
        httpx.ConnectError(f"{UNVERIFIED} has expired (_ssl.c:1)"),
        DownloadError,
        "has expired: this computer's date is",
    ),
    (httpx.RemoteProtocolError("x"), RetryableError, "lost"),
    (RuntimeError("x"), DownloadError, "RuntimeError"),
]


@pytest.mark.parametrize(("failure", "kind", "words"), FAILURES)
def test_a_failure_of_the_network_becomes_an_error_with_a_hint(
    failure: Exception, kind: type[LocalspecError], words: str
) -> None:
    error = network_error(failure, HUB)

    assert type(error) is kind
    assert words in error.message
    assert error.hint


def test_delays_double_up_to_the_longest() -> None:
    policy = RetryPolicy(max_attempts=4, first_delay=1, max_delay=3)
    error = RetryableError("x")

    delays = [policy.delay_before_retry(attempt, error) for attempt in (1, 2, 3)]

    assert delays == [1, 2, 3]


def test_there_is_a_last_attempt() -> None:
    policy = RetryPolicy(max_attempts=4)

    with pytest.raises(RetryableError):
        policy.delay_before_retry(4, RetryableError("x"))


def test_the_hub_may_ask_for_a_longer_wait_but_not_for_any() -> None:
    policy = RetryPolicy(max_delay=3)

    assert policy.delay_before_retry(1, RetryableError("x", retry_after=20)) == 20
    with pytest.raises(RetryableError):
        policy.delay_before_retry(1, RetryableError("x", retry_after=2000))


REFUSED = httpx.ConnectError("[Errno 111] Connection refused")
WRONG_SETTINGS: list[Exception] = [
    REFUSED,
    httpx.ConnectTimeout("x"),
    httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"),
]


@pytest.mark.parametrize("failure", WRONG_SETTINGS)
def test_a_failure_names_the_variable_that_chose_the_hub(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f" {HUB}/\r\n")

    error = network_error(failure, HUB)

    assert isinstance(error, LocalspecError)
    assert "HF_ENDPOINT" in f"{error.message} {error.hint}"


@pytest.mark.parametrize("failure", WRONG_SETTINGS)
def test_a_failure_names_the_option_that_chose_the_hub(failure: Exception) -> None:
    error = network_error(failure, HUB)
    assert isinstance(error, LocalspecError)
    assert "--endpoint" in f"{error.message} {error.hint}"


def test_a_failure_of_the_usual_hub_names_no_setting() -> None:
    error = network_error(REFUSED, DEFAULT_ENDPOINT)
    assert isinstance(error, OfflineError)
    assert error.message == f"{DEFAULT_ENDPOINT} cannot be reached."


def test_a_page_of_a_login_names_what_chose_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", HUB)
    assert "HF_ENDPOINT" in not_a_hub_error(HUB).hint
