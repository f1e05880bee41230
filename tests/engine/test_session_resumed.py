"""An answer that was cut goes on as if it had never stopped."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from localspec.errors import UsageError
from localspec.protocol.events import Prefill
from localspec.protocol.wire import ChatMessage, GenerateCommand, SamplingParams
from tests.support.sessions import (
    GREEDY,
    SETTINGS,
    folded,
    loaded,
    require_same_logits_at_every_width,
    say,
)
from tests.support.zoo import CHAT_TEXT, CHATTER, Zoo

PROMPT = "the one "
LENGTH = 24
WARM = SamplingParams(temperature=0.9, seed=7, repeat_penalty=1.1)


@pytest.mark.parametrize(
    ("target", "draft"),
    [("target", "cousin"), ("sliding", "target"), ("hybrid", "target"), ("deep", "eagle3")],
)
def test_cut_anywhere_it_says_what_it_would_have_said(zoo: Zoo, target: str, draft: str) -> None:
    require_same_logits_at_every_width(zoo[target])
    with loaded(zoo[target], zoo[draft]) as session:
        for sampling in (GREEDY, WARM):
            whole = say(session, PROMPT, spec="off", sampling=sampling, max_tokens=LENGTH)
            for spec, cut in product(("off", "model", "lookup", "auto"), range(0, LENGTH, 3)):
                begun = tuple(whole.ids[:cut])
                asked = {"spec": spec, "sampling": sampling, "max_tokens": LENGTH}
                rest = say(session, PROMPT, resumed_tokens=begun, **asked)
                assert [*begun, *rest.ids] == whole.ids, (spec, cut)
                assert rest.reason == "length"


@pytest.mark.parametrize("target", ["target", "hybrid", "recurrent"])
def test_as_from_fresh(zoo: Zoo, target: str) -> None:
    """Begun in another process, say: everything is read first."""
    require_same_logits_at_every_width(zoo[target])
    with loaded(zoo[target], zoo["cousin"]) as session:
        whole = say(session, PROMPT, sampling=WARM, max_tokens=LENGTH)
    with loaded(zoo[target], zoo["cousin"]) as session:
        begun = tuple(whole.ids[:9])
        events = list(session.generate(GenerateCommand(PROMPT, WARM, LENGTH, resumed_tokens=begun)))
    rest = folded(events)
    assert [*begun, *rest.ids] == whole.ids
    known = whole.totals["prompt_tokens"] + len(begun)
    assert {event.total for event in events if isinstance(event, Prefill)} == {known}
    assert rest.totals["prompt_tokens"] == known
    assert rest.totals["tokens"] == LENGTH - 9


@pytest.mark.parametrize("spec", ["off", "model"])
def test_a_stop_text_is_found_across_the_seam(zoo: Zoo, spec: str) -> None:
    """It is ` Hello, world!`, in pieces ▁Hello , ▁wor ld !"""
    with loaded(zoo["parrot"], zoo["parrot"]) as session:
        whole = say(session, "a", spec=spec)
        for stop, told in (("world", " Hello, "), ("o, w", " Hell"), ("!\n", " Hello, world")):
            cut = say(session, "a", spec=spec, stop=(stop,))
            assert (cut.text, cut.reason) == (told, "stop")
            for n in range(len(cut.ids) + 1):
                rest = say(
                    session, "a", spec=spec, stop=(stop,), resumed_tokens=tuple(whole.ids[:n])
                )
                before = say(session, "a", spec="off", stop=(stop,), max_tokens=n) if n else None
                shown = "".join(t.text for r in before.rounds for t in r.tokens) if before else ""
                assert (shown + rest.text, rest.reason) == (told, "stop")


def test_a_character_is_whole_across_the_seam(zoo: Zoo) -> None:
    settings = replace(SETTINGS, n_ctx=2048)
    with loaded(zoo["chatty"], settings=settings) as session:
        asked = GenerateCommand(
            messages=(ChatMessage("user", "Hi?"),), sampling=GREEDY, max_tokens=200, spec="off"
        )
        whole = folded(session.generate(asked))
        assert whole.text == CHAT_TEXT
        for cut in range(1, len(whole.ids)):
            rest = folded(session.generate(replace(asked, resumed_tokens=tuple(whole.ids[:cut]))))
            before = "".join(token.text for r in whole.rounds[:cut] for token in r.tokens)
            assert before + rest.text == whole.text


def test_an_answer_that_has_ended_stays_so(zoo: Zoo) -> None:
    with loaded(zoo["parrot"]) as session:
        whole = say(session, "a")
        assert whole.reason == "eog"
        rest = say(session, "a", resumed_tokens=tuple(whole.ids))
        assert (rest.ids, rest.text, rest.reason) == ([], "", "eog")
    with loaded(zoo["chatter"]) as session:
        whole = say(session, "a", max_tokens=5)
        rest = say(session, "a", max_tokens=5, resumed_tokens=tuple(whole.ids))
        assert (rest.ids, rest.reason) == ([], "length")
        rest = say(session, "a", max_tokens=999, resumed_tokens=tuple(whole.ids) * 200)
        assert (rest.ids, rest.reason) == ([], "context")
        with pytest.raises(UsageError, match="tokens that this model does not have"):
            say(session, PROMPT, resumed_tokens=(1, 99_999))
        assert say(session, "a", max_tokens=len(CHATTER)).reason == "length", "and goes on"
