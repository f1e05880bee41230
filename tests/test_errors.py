"""Every failure has a cause that a script can tell from the others."""

from __future__ import annotations

from localspec import errors
from localspec.errors import LocalspecError, UsageError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LocalspecError)
]


def test_each_kind_has_a_code_and_an_exit_code_of_its_own() -> None:
    assert len(KINDS) > 8
    assert len({kind("x").code for kind in KINDS}) == len(KINDS)
    assert len({kind("x").exit_code for kind in KINDS}) == len(KINDS)


def test_exit_codes_are_failures_that_no_signal_or_shell_uses() -> None:
    for kind in KINDS:
        assert 1 <= kind("x").exit_code < 64, kind
        assert kind("x").code.replace("-", "").isalpha(), kind


def test_usage_is_what_shells_expect() -> None:
    assert UsageError("x").exit_code == 2


def test_a_failure_without_a_cause_is_a_plain_failure() -> None:
    assert (LocalspecError("x").code, LocalspecError("x").exit_code) == ("failure", 1)


def test_an_error_carries_what_happened_and_the_next_step() -> None:
    error = UsageError("It went wrong.", "Do it right.")
    assert (str(error), error.message, error.hint) == (
        "It went wrong.",
        "It went wrong.",
        "Do it right.",
    )
    assert UsageError("It went wrong.").hint == ""
