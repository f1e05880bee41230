"""Probabilities of an answer's tokens, on real tiny models through real llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from localspec.engine.llama.context import LlamaContext
from localspec.engine.protocols import Draft
from localspec.engine.session import Session
from localspec.engine.token_probabilities import score_tokens
from localspec.machine.llama_params import ModelRole
from localspec.protocol.events import Token
from localspec.protocol.wire import SamplingParams, VerifyMode
from tests.engine.laws import MODES
from tests.support.sessions import (
    GREEDY,
    SETTINGS,
    Said,
    loaded,
    require_same_logits_at_every_width,
    say,
)
from tests.support.zoo import Zoo

PROMPT = "the one "
SAMPLED = SamplingParams(temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def related(zoo: Zoo) -> Iterator[Session]:
    """A near relation drafts: right often, and wrong often."""
    with loaded(zoo["target"], zoo["cousin"]) as session:
        yield session


def tokens(said: Said) -> list[Token]:
    return [token for event in said.rounds for token in event.tokens]


@pytest.mark.parametrize("mode", MODES)
def test_the_text_is_the_same_and_every_token_has_them(related: Session, mode: VerifyMode) -> None:
    for sampling in (GREEDY, SAMPLED):
        for spec in ("off", "model", "lookup", "auto"):
            asked = {"spec": spec, "verify": mode, "sampling": sampling, "max_tokens": 50}
            said = say(related, PROMPT, probabilities=True, **asked)
            without = say(related, PROMPT, **asked)
            assert all(token.rank and token.p_target for token in tokens(said))
            if spec != "auto" or mode == "coupled":  # when `auto` guesses depends on the clock
                assert said.ids == without.ids
            for token in tokens(without):
                assert (token.p_target, token.p_draft, token.rank) == (None, None, None)
                assert token.alternatives == ()


def test_a_copied_token_has_none(related: Session) -> None:
    said = say(related, PROMPT * 3, spec="lookup", probabilities=True, max_tokens=80)
    assert said.speculation["drafted"] > 0
    others = [other for token in tokens(said) for other in token.alternatives]
    assert any(other.was_drafted for other in others)
    assert all(token.p_draft is None for token in tokens(said))
    assert all(other.p_draft is None for other in others)


def test_they_are_the_targets_own(related: Session, zoo: Zoo) -> None:
    """Against rows of one token a pass, from a model that does nothing else."""
    require_same_logits_at_every_width(zoo["target"])
    said = say(related, PROMPT, spec="model", sampling=SAMPLED, probabilities=True, max_tokens=40)
    model = LlamaContext(zoo["target"], ModelRole(SETTINGS, 1, 0))
    try:
        prompt = model.vocabulary.tokenize(PROMPT)
        row = model.decode(prompt, 1)[0]
        for token in tokens(said):
            every = score_tokens(np.broadcast_to(row, (len(row),) * 2), range(len(row)), Draft())
            assert sum(seen.chosen.p for seen in every) == pytest.approx(1, abs=1e-6)
            assert every[token.id].chosen.p == pytest.approx(token.p_target, abs=1e-6)
            assert every[token.id].chosen.rank == token.rank
            row = model.decode([token.id], 1)[0]
    finally:
        model.close()


def test_the_end_has_a_probability_and_no_text(zoo: Zoo) -> None:
    with loaded(zoo["parrot"], zoo["parrot"]) as session:
        said = say(session, "a", spec="model", probabilities=True)
    end = tokens(said)[-1]
    assert (said.reason, end.text, end.rank) == ("eog", "", 1)
    assert end.p_target is not None


def test_text_of_what_was_not_taken(zoo: Zoo) -> None:
    """Words as they would stand there; half a character, and what is no text at all."""
    with loaded(zoo["chatter"]) as session:
        words = session._target.vocabulary
        said = say(session, "a", spec="off", probabilities=True, sampling=SAMPLED, max_tokens=30)
        for token in tokens(said):
            for other in token.alternatives:
                piece = words.piece(other.id) or words.token_text(other.id)
                assert other.text == piece.decode("utf-8", "replace") != ""
                if 3 + 0x80 <= other.id < 3 + 256:
                    assert other.text == "\ufffd"
