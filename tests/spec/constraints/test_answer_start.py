"""Where a constrained answer begins, in every format that has something before it."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.models.chat_template.thinking_tags import make_parser
from localspec.spec.constraints.answer_start import AnswerStart, HeaderTokens
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.protocols import GrammarState
from localspec.spec.sampling import NoAllowedTokenError
from tests.support.fake_models import ToyGrammar

MARKERS = (
    *(
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
    ),
    *("<|begin|>", "<|think|>", "<|content|>"),
)
PIECES = (
    *MARKERS,
    *("{", "}", "Sorry", " no", ""),
    *(
        "assistant",
        "analysis",
        "commentary",
        "final",
        "fin",
        "al",
        "json",
        " json",
        " ",
        "Hm.",
    ),
    *(" to", "to", "=", "functions", ".f", "</", "think>", "think>x", "<", "|"),
)
CROSSING = ("<|message|>Sorry", "<|message|>{")
"""Tokens that hold the end of a header and text: no text is split into them."""
TOKENS = {piece: token for token, piece in enumerate((*PIECES, *CROSSING))}
OPEN = TOKENS["{"]
CLOSE = TOKENS["}"]
GRAMMAR = ToyGrammar({0: {OPEN: 1}, 1: {CLOSE: 1}})
HARMONY = ("<|channel|>analysis<|message|>", "<|end|>")
SOLAR = ("<|think|>", "<|end|>")


def split(text: str) -> list[int]:
    """The longest pieces first."""
    tokens = []
    while text:
        piece = max((p for p in PIECES if p and text.startswith(p)), key=len)
        tokens.append(TOKENS[piece])
        text = text.removeprefix(piece)
    return tokens


def constraint(
    tags: tuple[str, str] = HARMONY, *, is_open: bool = False, has_tools: bool = False
) -> OutputConstraint:
    pieces = list(TOKENS)
    tokens = HeaderTokens(len(pieces), lambda token: pieces[token].encode())
    parser = make_parser(tags, is_open)
    return OutputConstraint(
        AnswerStart(GRAMMAR, parser, tokens, has_tools=has_tools), 0
    )


def allowed_after(state: GrammarState | None) -> set[str]:
    """The pieces that may follow; both ways of asking give the same ones."""
    assert state is not None, "any token may follow"
    tested = state.allows(np.arange(len(TOKENS))).nonzero()[0]
    assert tested.tolist() == sorted(state.allowed_tokens().tolist())
    return {list(TOKENS)[token] for token in tested.tolist()}


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
HEADERS = [
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>final<|constrain|>json<|message|>",
    "<|channel|>final json<|message|>",
    "<|start|>assistant<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("is_open", [False, True])
def test_the_grammar_holds_from_the_first_token_behind_each_header(
    header: str, is_open: bool
) -> None:
    """The prompt may end inside the thinking."""
    asked = constraint(is_open=is_open)
    text = header
    if is_open:
        text = f"Hm.<|end|>{header}"
    begun = split(text)
    assert asked.state_after([], begun) is GRAMMAR
    assert asked.state_after(begun) is GRAMMAR
    assert allowed_after(asked.state_after([], [*begun, OPEN])) == {"}"}
    assert asked.count_allowed([], [*begun, OPEN, OPEN, CLOSE]) == len(begun) + 1


def test_no_token_holds_a_headers_end_and_text() -> None:
    begun = split("<|channel|>final json")
    assert allowed_after(constraint().state_after([], begun)) == {"<|message|>"}


def test_a_header_is_one_that_the_format_documents() -> None:
    asked = constraint()
    for begun, following in [
        ("<|start|>", {"assistant"}),
        ("<|channel|>", {"analysis", "commentary", "final", "fin"}),
        ("<|channel|>fin", {"al"}),
        ("<|channel|>final", {"<|message|>", "<|constrain|>", " ", " json"}),
        ("<|channel|>final ", {"<|constrain|>", "json"}),
        (f"{THOUGHT.removesuffix('assistant')}", {"assistant"}),
    ]:
        assert allowed_after(asked.state_after([], split(begun))) == following
    with pytest.raises(NoAllowedTokenError):
        asked.state_after([], split("<|channel|>final no"))


def test_a_marker_without_a_token_may_be_spelled() -> None:
    pieces = ["<|", "channel", "|>", "final", "<|message|>"]
    tokens = HeaderTokens(len(pieces), lambda token: pieces[token].encode())
    headers = ("<|channel|>final<|message|>",)
    for begun, following in [
        ("", [0]),
        ("<|", [1]),
        ("<|channel|>", [3]),
        ("<|channel|>final", [4]),
    ]:
        assert tokens.following(begun, headers).tolist() == following


@pytest.mark.parametrize("thought", ["", THOUGHT.removesuffix("<|start|>assistant")])
def test_an_answer_without_a_header_follows_the_grammar_too(thought: str) -> None:
    asked = constraint()
    begun = split(thought)
    assert allowed_after(asked.state_after([], begun)) == {
        "<|start|>",
        "<|channel|>",
        "{",
    }
    assert allowed_after(asked.state_after([], [*begun, OPEN])) == {"}"}
    with pytest.raises(NoAllowedTokenError):
        asked.state_after([], [*begun, TOKENS["Sorry"]])


def test_thinking_is_free_also_where_it_names_a_marker() -> None:
    asked = constraint()
    thought = split("<|channel|>analysis<|message|>Hm.<|channel|> no{<|message|>")
    assert asked.state_after([], thought) is None
    assert asked.state_after([], [*thought, *split(f"<|end|>{HEADERS[4]}")]) is GRAMMAR


def test_with_tools_a_call_and_what_is_said_before_it_are_free() -> None:
    asked = constraint(has_tools=True)
    between = allowed_after(asked.state_after([]))
    assert between == {"<|start|>", "<|channel|>", "{", " ", " to"}
    for free in (
        " to=",
        " to=functions",
        " to=functions.f<|channel|>commentary json<|message|>Sorry",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>Sorry",
        "<|channel|>commentary<|message|>Sorry",
    ):
        assert asked.state_after([], split(free)) is None
    assert asked.state_after([], split(HEADERS[1])) is GRAMMAR


def test_without_tools_there_is_no_call() -> None:
    asked = constraint()
    assert allowed_after(asked.state_after([])) == {"<|start|>", "<|channel|>", "{"}
    with pytest.raises(NoAllowedTokenError):
        asked.state_after([], split("<|channel|>commentary to=functions"))


@pytest.mark.parametrize(
    ("begun", "is_begun"),
    [
        ("<|content|>", True),
        ("<|think|>Hm.<|content|>", False),
        ("<|think|>Hm.<|end|><|begin|>assistant<|content|>", True),
        ("<|think|>Hm.<|end|><|content|>", True),
    ],
)
def test_solars_answer_begins_behind_its_own_header(begun: str, is_begun: bool) -> None:
    state = constraint(SOLAR).state_after([], split(begun))
    expected = GRAMMAR if is_begun else None
    assert state is expected


def test_thinking_between_tags_is_free_until_they_close() -> None:
    asked = constraint(("<think>", "</think>"), is_open=True)
    close = TOKENS["</"]
    last = TOKENS["think>"]
    crossing = TOKENS["think>x"]
    assert asked.state_after([OPEN, close], [OPEN, last]) is None
    assert asked.state_after([OPEN, close], [crossing]) is GRAMMAR
    asked.commit([OPEN, close])
    assert asked.state_after([OPEN, close], [last]) is GRAMMAR
    assert asked.count_allowed([OPEN, close], [last, OPEN, OPEN]) == 2
    with pytest.raises(NoAllowedTokenError):
        asked.state_after([OPEN, close, last, CLOSE])


@pytest.mark.parametrize("header", HEADERS)
def test_a_draft_is_cut_at_the_first_wrong_token_of_the_answer(header: str) -> None:
    """Wherever the text ends and the draft begins, and whatever was drafted before."""
    begun = split(f"<|channel|>analysis<|message|>Hm.<|end|>{header}{{")
    whole = [*begun, TOKENS["Sorry"], CLOSE]
    for n in range(len(begun)):
        asked = constraint()
        asked.commit(begun[:n])
        asked.state_after(begun[:n], begun[n:-1])
        assert asked.count_allowed(begun[:n], whole[n:]) == len(begun) - n


@pytest.mark.parametrize(
    "given", ["<|channel|>final no<|message|>", "Sorry", " <|channel|>final"]
)
def test_a_text_that_is_given_may_differ_from_what_could_be_drafted(given: str) -> None:
    """The end of a thinking part does in some vocabularies, and an older answer's header."""
    asked = constraint()
    begun = split(given)
    assert asked.count_allowed([], begun) < len(begun)
    asked.commit(begun)
    if given.endswith("final"):
        assert asked.state_after(begun) is None
        begun.append(TOKENS["<|message|>"])
    assert asked.state_after(begun) is GRAMMAR
