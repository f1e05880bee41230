"""An answer's own tokens stand in the next prompt wherever they say the same, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.chat_prompt import reuse_answer_tokens
from localspec.protocol.wire import ChatMessage

END, START = 0, 1
_CONTROLS = {END: b"<end>", START: b"<start>"}
_WORDS = [b"a", b"b", b"ab", b"ba", b"aa", b" ", b" a", b"\xc3\xa9", b"\xc3", b"\xa9", b"\n"]


class Words:
    """A vocabulary of two control tokens and a few pieces; the longest match first."""

    n_tokens = 2 + len(_WORDS)

    def piece(self, token: int) -> bytes:
        assert 0 <= token < self.n_tokens
        return b"" if token in _CONTROLS else _WORDS[token - 2]

    def token_text(self, token: int) -> bytes:
        return _CONTROLS.get(token, b"")

    def tokenize(self, text: str) -> list[int]:
        data, found = text.encode(), []
        known = {**{i + 2: w for i, w in enumerate(_WORDS)}, **_CONTROLS}
        while data:
            best = max((t for t in known if data.startswith(known[t])), key=lambda t: len(known[t]))
            found.append(best)
            data = data[len(known[best]) :]
        return found


WORDS = Words()
A, B, AB, BA, AA, SPACE, SPACE_A, E, E1, E2, LINE = range(2, 13)


def shown(tokens: list[int]) -> bytes:
    return b"".join(WORDS.piece(t) or WORDS.token_text(t) for t in tokens)


def prompt(text: str, *said: ChatMessage) -> list[int]:
    return reuse_answer_tokens(WORDS.tokenize(text), said, WORDS)  # type: ignore[arg-type]


def asked(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def answer(text: str, *tokens: int) -> ChatMessage:
    return ChatMessage("assistant", text, tokens)


def test_an_answer_keeps_its_own_tokens() -> None:
    found = prompt("<start>ab<end><start>abab<end>", asked("ab"), answer("abab", A, BA, B, END))
    assert found == [START, AB, END, START, A, BA, B, END]


def test_without_tokens_nothing_changes() -> None:
    assert prompt("ab<end>ab", asked("ab"), answer("ab")) == [AB, END, AB]


def test_what_a_template_dropped_stays_dropped() -> None:
    """Thinking, say: the text that is left is as the tokenizer writes it."""
    assert prompt("<start>ab<end>", answer("aaaab", AA, AA, A, B)) == [START, AB, END]


def test_trimmed_space_ends_the_answer_there() -> None:
    assert prompt("<start>ab<end>", answer("ab \n", A, B, SPACE, LINE)) == [START, A, B, END]


def test_a_stop_string_ends_the_answer_there() -> None:
    """Its tokens went further than its text."""
    assert prompt("ab<end>", answer("ab", A, B, AA, A)) == [A, B, END]


def test_a_token_over_the_end_is_the_tokenizers() -> None:
    """Here the stop string began within a token."""
    assert prompt("aba<end>", answer("aba", A, B, AA)) == [A, B, A, END]


def test_an_edited_answer_keeps_what_still_agrees() -> None:
    assert prompt("abaa<end>", answer("abaa", A, B, B, A)) == [A, B, AA, END]


def test_a_character_in_two_tokens() -> None:
    assert prompt("éa", answer("éa", E1, E2, A)) == [E1, E2, A]


def test_a_character_that_was_cut_off() -> None:
    """Its text says U+FFFD, which here is no token's: so only what is before it is compared."""
    tokens = [A, B, E1]
    whole = [*WORDS.tokenize("ab"), END]
    assert reuse_answer_tokens(whole, [answer("ab", *tokens)], WORDS) == [A, B, END]  # type: ignore[arg-type]


def test_control_tokens_in_an_answer_do_not_come_back() -> None:
    assert prompt("ab<end>", answer("ab", A, START, B)) == [AB, END]
    assert prompt("a b<end>", answer("a b", A, SPACE, START, B)) == [A, SPACE, B, END]


def test_ids_that_are_not_the_models_are_no_harm() -> None:
    assert prompt("ab<end>", answer("ab", -1, 99)) == [AB, END]
    assert prompt("a b<end>", answer("a b", A, 99)) == [A, SPACE, B, END]


def test_a_question_that_quotes_the_answer() -> None:
    found = prompt("<start>ab<end><start>ab<end>", asked("ab"), answer("ab", A, B))
    assert found == [START, AB, END, START, A, B, END]


@given(
    turns=st.lists(
        st.tuples(st.text("ab \né", max_size=6), st.lists(st.integers(0, 12), max_size=8)),
        max_size=4,
    ),
    kept=st.integers(0, 9),
)
def test_the_text_is_never_changed(turns: list[tuple[str, list[int]]], kept: int) -> None:
    said, text = [], ""
    for question, tokens in turns:
        content = b"".join(map(WORDS.piece, tokens)).decode("utf-8", "replace")
        content = content.replace("\ufffd", "")[:kept]
        said += [asked(question), answer(content, *tokens)]
        text += f"<start>{question}<end><start>{content.strip()}<end>"
    found = prompt(text, *said)
    assert shown(found) == text.encode()
    controls = [t for t in found if t in _CONTROLS]
    assert controls == [START, END] * (2 * len(turns))
