"""Speculation with pictures in the prompt: the text is that of plain decoding."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.engine import draft_scoring
from localspec.engine.draft_scoring import ScoredAnswer
from localspec.protocol.wire import SamplingParams
from localspec.spec import drafters
from localspec.spec.picture_ids import has_pictures
from localspec.spec.prepared_answer import PreparedAnswer, TokenPart
from localspec.spec.verifiers import make_verifier
from tests.support.long_cases import often
from tests.support.picture_prompts import PICTURES, SMALL, TALL, WIDE, Part
from tests.support.picture_sessions import SeeingSession, seeing_session
from tests.support.sessions import GREEDY
from tests.support.vision_models import KINDS, VisionModels

SEEDED = SamplingParams(temperature=0.9, top_k=20, seed=11)
PENALTIES = SamplingParams(
    temperature=0.0, repeat_penalty=1.2, frequency_penalty=0.1, dry_multiplier=0.5
)
PROMPTS: dict[str, tuple[Part, ...]] = {
    "text, picture, text": ("user: look at ", WIDE, " what is it?"),
    "picture first": (SMALL, " tell me the colours"),
    "two pictures": ("compare ", SMALL, " and ", TALL, " now"),
    "picture last": ("the one and the ", WIDE),
}

FindDraft = Callable[[VisionModels], Path | None]


def _own_draft(kind: str) -> FindDraft:
    return lambda models: models.draft(kind)


def _head(name: str) -> FindDraft:
    return lambda models: models.head(name)


PAIRS: dict[str, tuple[str, str, FindDraft]] = {
    "smolvlm, draft model": ("smolvlm", "model", _own_draft("smolvlm")),
    "qwen2vl, draft model": ("qwen2vl", "model", _own_draft("qwen2vl")),
    "qwen3vl, draft model": ("qwen3vl", "model", _own_draft("qwen3vl")),
    "gemma3, draft model": ("gemma3", "model", _own_draft("gemma3")),
    "qwen35, draft model": ("qwen35", "model", _own_draft("qwen35")),
    "qwen35, MTP": ("qwen35", "mtp", lambda models: models["qwen35"].model),
    "smolvlm, EAGLE-3": ("smolvlm", "eagle3", _head("eagle3")),
    "smolvlm, DFlash": ("smolvlm", "dflash", _head("dflash")),
    "gemma4, assistant": ("gemma4", "mtp", _head("assistant")),
}
"""The kind of model, the method, and the file of the draft."""


def assert_like_plain(
    session: SeeingSession, spec: str, prompt: list[int], sampling: SamplingParams
) -> int:
    """Returns how many tokens were drafted."""
    plain = session.answer(prompt, sampling=sampling)
    drafted = session.answer(prompt, spec, sampling=sampling)
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 48
    return drafted.n_drafted


QUESTIONS = (" what is it?", " tell me the colours", " the one")


@pytest.mark.parametrize("kind", often(KINDS, ["smolvlm", "qwen3vl"]))
def test_texts_are_those_of_libmtmd(vision_models: VisionModels, kind: str) -> None:
    """With six kinds 108 prompts: one or two of three pictures, and a question."""
    prompts: list[tuple[Part, ...]] = []
    for question, first in product(QUESTIONS, PICTURES):
        prompts.append(("user: ", first, question))
        prompts.append(("user: ", first, " and ", PICTURES[0], question))
    assert len(prompts) == 18
    with seeing_session(vision_models, kind) as session:
        for parts in prompts:
            session.model.context.truncate(0)
            expected = session.model.generate_by_libmtmd(48, *parts)
            for spec in ("off", "lookup"):
                answer = session.answer(session.prompt(*parts), spec)
                assert answer.tokens == expected


@pytest.mark.parametrize("kind", KINDS)
def test_copies_leave_the_text_as_it_is(vision_models: VisionModels, kind: str) -> None:
    n_drafted = 0
    with seeing_session(vision_models, kind) as session:
        for parts in PROMPTS.values():
            prompt = session.prompt(*parts)
            for sampling in (GREEDY, SEEDED, PENALTIES):
                n_drafted += assert_like_plain(session, "lookup", prompt, sampling)
    assert n_drafted > 20


@pytest.mark.parametrize(
    "pair",
    often(
        PAIRS,
        [
            "smolvlm, draft model",
            "gemma3, draft model",
            "qwen35, MTP",
            "smolvlm, EAGLE-3",
            "smolvlm, DFlash",
            "gemma4, assistant",
        ],
    ),
)
def test_drafts_leave_the_text_as_it_is(
    vision_models: VisionModels, pair: tuple[str, str, FindDraft]
) -> None:
    """A draft model or head reads the text without its pictures."""
    kind, spec, find_draft = pair
    draft = find_draft(vision_models)
    with seeing_session(vision_models, kind, draft) as session:
        n_drafted = 0
        for parts in PROMPTS.values():
            prompt = session.prompt(*parts)
            for sampling in (GREEDY, SEEDED):
                n_drafted += assert_like_plain(session, spec, prompt, sampling)
                assert_like_plain(session, "auto", prompt, sampling)
        assert n_drafted > 50


@pytest.mark.parametrize("kind", ["smolvlm", "qwen35"])
def test_the_next_turn_continues(vision_models: VisionModels, kind: str) -> None:
    """A picture, an answer, another picture; and the answers with a draft model."""
    draft = vision_models.draft(kind)
    with seeing_session(vision_models, kind, draft) as session:
        prompt = session.prompt("see ", WIDE, " what?")
        texts: list[list[int]] = []
        for spec in ("off", "model"):
            text = list(prompt)
            for picture in (SMALL, TALL):
                text += session.answer(text, spec).tokens
                text += session.prompt(" and ", picture, " then?")
            texts.append(text + session.answer(text, spec).tokens)
        assert texts[0] == texts[1]


def test_most_drafts_of_a_close_model_are_accepted_behind_a_picture(
    vision_models: VisionModels,
) -> None:
    """Its drafts are those for the text alone: it was given no row of a picture."""
    draft = vision_models.draft("gemma3")
    with seeing_session(vision_models, "gemma3", draft) as session:
        answer = session.answer(session.prompt(*PROMPTS["picture first"]), "model")
        assert answer.n_accepted > 0.4 * answer.n_drafted
        cached = session.session._drafters.caches[0].cached_tokens
        assert not has_pictures(cached)


@pytest.mark.parametrize("spec", ["model", "lookup"])
def test_a_grammar_holds_behind_a_picture(
    vision_models: VisionModels, spec: str
) -> None:
    draft = vision_models.draft("smolvlm")
    grammar = 'root ::= (("one" | "two" | "the") " "?)+'
    with seeing_session(vision_models, "smolvlm", draft) as session:
        prompt = session.prompt(*PROMPTS["two pictures"])
        # The grammar takes the token of a byte and that of its letter for one.
        no_bytes = replace(GREEDY, logit_bias=tuple((i, -99.0) for i in range(3, 259)))
        plain = session.answer(prompt, grammar=grammar, sampling=no_bytes)
        drafted = session.answer(prompt, spec, grammar=grammar, sampling=no_bytes)
        assert drafted.tokens == plain.tokens
        vocabulary = session.session._target.vocabulary
        text = b"".join(map(vocabulary.piece, plain.tokens)).decode()
        left = text.replace("one", "").replace("two", "").replace("the", "")
        assert set(left) <= set(" onetwh")


def test_chats_with_pictures_leave_the_memory_and_come_back(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.spec.prefix_cache.MIN_TOKENS", 8)
    for kind in KINDS:
        with seeing_session(vision_models, kind, snapshot_bytes=64 * 2**20) as session:
            cache = session.session._target_cache
            first = session.prompt("see ", WIDE, " and ", TALL, " what?")
            second = session.prompt("other ", SMALL, " text")
            text = first + session.answer(first).tokens
            session.answer(second)
            answer = session.answer(text)
            assert session.session._snapshots.n_bytes > 0
            cache.model.truncate(0)
            cache.replace(())
            assert session.answer(text).tokens == answer.tokens


def test_a_stop_while_a_picture_is_read_leaves_no_trace(
    vision_models: VisionModels,
) -> None:
    for kind in KINDS:
        with seeing_session(vision_models, kind) as session:
            prompt = session.prompt("see ", WIDE, " what?")
            expected = session.answer(prompt).tokens
            projector = session.model.projector
            for n_polls in range(1, 6):
                projector._states.clear()
                session.model.context.truncate(0)
                n_left = n_polls

                def is_interrupted() -> bool:
                    nonlocal n_left
                    n_left -= 1
                    return n_left == 0

                session.model.context.is_interrupted = is_interrupted
                stopped = session.answer(prompt).tokens
                session.model.context.is_interrupted = lambda: False
                assert stopped == expected[: len(stopped)]
                assert session.answer(prompt).tokens == expected


def test_scores_of_a_draft_are_those_of_its_rounds(
    vision_models: VisionModels,
) -> None:
    """A draft model and a head are judged on the text without its pictures, too."""
    cases = (
        ("gemma3", vision_models.draft("gemma3")),
        ("qwen35", vision_models["qwen35"].model),
    )
    for kind, draft in cases:
        with seeing_session(vision_models, kind, draft) as session:
            _assert_scored(session)


def _assert_scored(session: SeeingSession) -> None:
    inner = session.session
    prompt = session.prompt("see ", WIDE, " what?")
    answer = session.answer(prompt, "model")
    prepared = PreparedAnswer(
        parts=(TokenPart(prompt),),
        sampling=GREEDY,
        max_tokens=48,
        verifier=make_verifier("coupled", 0),
        is_eog=inner._target.vocabulary.is_eog,
        is_cancelled=lambda: False,
    )
    scored = ScoredAnswer(prepared, tuple(answer.tokens), inner._target.n_vocab)
    draft = inner._pair.loaded_draft
    assert draft is not None
    if draft.kind == "model":
        score = draft_scoring.score_model(draft.load_for_scoring(), scored)
    else:
        inputs = inner._drafters.inputs(prepared, draft)
        assert inputs.head_runner is not None
        drafter = drafters.make(draft.kind, inputs)
        score = draft_scoring.score_head(
            inner._target, inputs.head_runner, drafter, scored
        )
    at = 0
    for step in answer.rounds:
        drafted = step.draft.tokens
        if at and drafted:
            assert min(len(drafted), score.accepted[at]) == step.accepted
        at += len(step.tokens)
