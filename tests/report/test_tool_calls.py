"""What a person reads of a tool call: all of it, and nothing that hides."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.chat.conversation import CallResult
from localspec.chat.tool_loop import CallState, find_phase
from localspec.report.tool_calls import (
    CallArgument,
    describe_arguments,
    describe_claims,
    describe_description,
    describe_outcome,
    describe_provider,
    is_folded,
    show_exactly,
    summarise_arguments,
)
from localspec.tools.approval import CallRequest, Verdict
from localspec.tools.tool_types import ToolDefinition

TOOL = ToolDefinition(
    provider="files",
    name="write",
    description="Writes\n a file.",
    schema={},
    claims=("can destroy",),
    origin="uvx files --root /",
)


def request(text: str = "{}", **arguments: object) -> CallRequest:
    return CallRequest("c1", "files_write", TOOL, arguments, text)


def state(verdict: Verdict, text: str, *, is_error: bool = False) -> CallState:
    result = CallResult("c1", "files.write", text, is_error, verdict)
    return CallState(request(path="a"), find_phase(result), result)


INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode that are drawn as nothing."""
JOINERS = "\u200c\u200d"


@given(st.text(alphabet=st.characters(exclude_categories=["Cn", "Co"])))
def test_no_invisible_character_is_left_in_what_is_allowed(text: str) -> None:
    for character in show_exactly(text):
        is_kept = character in f"\n\t{JOINERS}"
        assert is_kept or unicodedata.category(character) not in INVISIBLE


@pytest.mark.parametrize(
    "hidden",
    [
        "\u200c\u200d\u200c",  # Joiners, as bits of a message.
        "\ufe0f\ufe0e",
        "\U000e0100\U000e01ef",  # Selectors of variants, as bytes of one.
        "\ufe00\ufe0d",
        "\u034f",
        "\u3164\uffa0\u115f\u2800",  # Letters that are blank.
    ],
    ids=ascii,
)
@pytest.mark.parametrize("before", ["", "a", "\n"], ids=ascii)
def test_no_message_hides_in_characters_without_a_look(
    before: str, hidden: str
) -> None:
    shown = show_exactly(f"https://example.org/{before}{hidden}z")
    assert not set(shown) & set(hidden)
    assert shown.count("\\") == len(hidden)


@pytest.mark.parametrize(
    "text",
    ["می\u200cخواهم", "क्\u200dष", "\u2764\ufe0f\u200d\U0001f525", "☀\ufe0f", "e\u0301"],
    ids=ascii,
)
def test_characters_that_change_the_look_of_others_stay(text: str) -> None:
    assert show_exactly(text) == text


def test_an_argument_is_a_text_or_json() -> None:
    shown = describe_arguments(request(path="a\nb", depth=2, names=["x", "y"]))
    assert shown == (
        CallArgument("path", "a\nb"),
        CallArgument("depth", "2"),
        CallArgument("names", '[\n  "x",\n  "y"\n]'),
    )


def test_arguments_that_are_no_object_are_shown_as_they_are() -> None:
    assert describe_arguments(request("[1, 2]")) == (
        CallArgument("arguments", "[1, 2]"),
    )
    assert describe_arguments(request("{}")) == ()


def test_a_summary_is_one_line() -> None:
    assert summarise_arguments(request(path="a\nb", depth=2)) == "path: a b, depth: 2"
    assert summarise_arguments(request('{"path": "a')) == '{"path": "a'
    assert len(summarise_arguments(request(path="x" * 10_000))) < 500


def test_what_runs_is_named_and_claims_are_marked_as_such() -> None:
    assert describe_provider(TOOL) == "the server files (uvx files --root /)"
    assert describe_claims(TOOL) == "Its claims, unchecked: can destroy."
    assert describe_description(TOOL) == "The server says: “Writes a file.”"


def test_the_folder_is_localspec_itself_and_its_claim_is_a_fact() -> None:
    folder = replace(TOOL, provider="folder", origin="/home/me", claims=("read-only",))
    assert describe_provider(folder) == "localspec itself, in the folder /home/me"
    assert describe_claims(folder) == "It is read-only."


def test_an_outcome_says_what_came_of_a_call() -> None:
    assert describe_outcome(state("once", "a\nb")) == "done · 3 characters: a b"
    assert describe_outcome(state("once", "")) == "done"
    assert describe_outcome(state("always", "x")) == (
        "done, always allowed · 1 character: x"
    )
    refused = state("no", "The user refused this call. Reason: no", is_error=True)
    assert describe_outcome(refused) == "refused: no"
    assert describe_outcome(
        state("no", "The user refused this call.", is_error=True)
    ) == ("refused")
    assert describe_outcome(
        state("stopped", "The user stopped this call.", is_error=True)
    ) == ("stopped")
    assert describe_outcome(state("wrong", "There is no tool.", is_error=True)) == (
        "failed: There is no tool."
    )


def test_a_result_of_one_line_is_not_folded() -> None:
    assert not is_folded("one line\n")
    assert is_folded("one\ntwo")
