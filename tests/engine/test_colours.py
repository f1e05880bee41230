"""Every token is told in the class that it really had, which is found out by other means."""

from __future__ import annotations

from itertools import takewhile

import pytest

from localspec.engine.chat_prompt import Prompt
from localspec.engine.session import Session
from localspec.paths import package_data_dir
from localspec.protocol.events import Round
from tests.sessions import Said, loaded, require_same_logits_at_every_width, say
from tests.support.zoo import CHATTER, Zoo

TARGET, DRAFT = (package_data_dir() / "demo" / f"demo-{name}.gguf" for name in ("target", "draft"))
BODY = '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a file."""
    with open(path, encoding=encoding) as file:
        return [line.rstrip() for line in file]
'''
REPEAT = f"{BODY}\n\n{BODY}\n\n{BODY[:20]}"
"""Asks a model that completes text to say the same once more."""
FRESH = "class Zebra:\n    stripes = "


@pytest.fixture(autouse=True)
def _bit_equal() -> None:
    """Else a near-tie may fall another way in the pass that checks."""
    for path in (TARGET, DRAFT):
        require_same_logits_at_every_width(path)


def test_copies_of_a_repeated_text_are_kept_guesses(zoo: Zoo) -> None:
    """A model that says the same words over and over, asked to say once more what stands there."""
    with loaded(zoo["chatter"]) as session:
        spoken = say(session, "the one ", spec="off", max_tokens=3 * len(CHATTER))
        begun = tuple(spoken.ids)
        said = say(
            session, "the one ", spec="lookup", resumed_tokens=begun, max_tokens=5 * len(CHATTER)
        )
        assert said.ids == spoken.ids[: len(said.ids)], "it was asked to repeat, and does"
    kinds = [token.kind for heard in said.rounds for token in heard.tokens]
    assert kinds[0] == "plain", "the first token comes from the reading of the prompt"
    assert set(kinds[1:-1]) <= {"accepted", "bonus"}, "the last may find no room for a guess"
    assert kinds.count("accepted") >= 0.7 * len(kinds)


def test_a_kept_copy_did_stand_in_the_text_before() -> None:
    """Whatever a token's class says, the text itself tells whether it can have been copied."""
    with loaded(TARGET) as session:
        said = say(session, REPEAT, spec="lookup", max_tokens=80)
        text = tokens_of(session, REPEAT)
    for heard in said.rounds:
        for token in heard.tokens:
            if token.kind == "accepted":
                assert runs(text, 2, token.id), f"{token.text!r} after {text[-2:]} is nowhere"
            text.append(token.id)


def test_nothing_is_coloured_where_nothing_was_guessed() -> None:
    with loaded(TARGET, DRAFT) as session:
        for text in (FRESH, REPEAT):
            said = say(session, text, spec="off", max_tokens=16)
            assert {t.kind for heard in said.rounds for t in heard.tokens} == {"plain"}


@pytest.mark.parametrize("prompt", [REPEAT, FRESH], ids=["repeat", "fresh"])
def test_guesses_of_the_draft_are_those_it_makes_by_itself(prompt: str) -> None:
    """The draft model alone, asked at the start of every round, says what it would guess."""
    with loaded(TARGET, DRAFT) as session:
        said = say(session, prompt, spec="model", max_tokens=60)
    assert sum(heard.accepted for heard in said.rounds) > 10
    with loaded(DRAFT) as alone:
        emitted: list[int] = []
        for heard in said.rounds:
            if heard.drafted:
                assert_coloured(heard, guesses(alone, prompt, emitted, heard.drafted))
            else:
                assert [token.kind for token in heard.tokens] == ["plain"]
            emitted += [token.id for token in heard.tokens]


def guesses(alone: Session, prompt: str, emitted: list[int], n: int) -> list[int]:
    asked = {"resumed_tokens": tuple(emitted), "max_tokens": len(emitted) + n, "spec": "off"}
    said: Said = say(alone, prompt, **asked)
    return said.ids


def assert_coloured(heard: Round, guessed: list[int]) -> None:
    ids = [token.id for token in heard.tokens]
    kept = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(ids, guessed, strict=False))))
    last = "bonus" if kept == heard.drafted else "correction"
    assert heard.accepted == kept
    assert [token.kind for token in heard.tokens] == [*["accepted"] * kept, last][: len(ids)]


def runs(text: list[int], n: int, token: int) -> bool:
    """Whether the last `n` tokens, and then this one, stood in the text before."""
    wanted = [*text[-n:], token]
    return any(text[at : at + n + 1] == wanted for at in range(len(text) - n))


def tokens_of(session: Session, text: str) -> list[int]:
    return list(session._pair.tokenize_prompt(Prompt(text)))
