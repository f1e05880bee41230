"""Every failure has a cause that a script can tell from the others."""

from __future__ import annotations

import pytest

from localspec import errors
from localspec.errors import LocalspecError, UsageError, error_code, exit_code

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LocalspecError)
]
NAMED = [kind for kind in KINDS if kind is not LocalspecError]


def test_there_are_some() -> None:
    assert len(NAMED) >= 8


@pytest.mark.parametrize("kind", NAMED)
def test_each_kind_has_a_cause_of_its_own(kind: type[LocalspecError]) -> None:
    others = [other for other in KINDS if other is not kind]
    assert error_code(kind("x")) not in [error_code(other("x")) for other in others]
    assert exit_code(kind("x")) not in [exit_code(other("x")) for other in others]


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes_are_failures_that_no_signal_or_shell_uses(kind: type[LocalspecError]) -> None:
    assert 1 <= exit_code(kind("x")) < 64
    assert error_code(kind("x")).replace("-", "").isalpha()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_what_it_is(kind: type[LocalspecError]) -> None:
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


def test_usage_is_what_shells_expect() -> None:
    assert exit_code(UsageError("x")) == 2


def test_a_failure_without_a_cause_is_a_plain_failure() -> None:
    assert (error_code(LocalspecError("x")), exit_code(LocalspecError("x"))) == ("failure", 1)


def test_an_error_carries_what_happened_and_the_next_step() -> None:
    error = UsageError("It went wrong.", "Do it right.")
    assert (str(error), error.message, error.hint) == (
        "It went wrong.",
        "It went wrong.",
        "Do it right.",
    )
    assert UsageError("It went wrong.").hint == ""
