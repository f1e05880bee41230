"""Chats that outgrow their context, on every memory: what was chosen happens, and is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from localspec.chat import recording
from localspec.chat.context import Choose, Full, Writer
from localspec.chat.conversation import SUMMARY, Conversation
from localspec.chat.fields import Overflow
from localspec.chat.meter import How, Meter, meter
from localspec.chat.settings import Loaded, Settings
from localspec.chat.turn import Cut
from localspec.engine.session import Session
from localspec.errors import EngineError, PromptTooLongError
from localspec.protocol.events import Dead, Event, Finished, Notice, Prefill, Round
from localspec.protocol.wire import ContextSettings, Count, Generate, Replay, Sampling
from tests.sessions import SETTINGS, Said, folded, loaded, require_same_logits_at_every_width
from tests.zoo import CHAT_TEXT, Zoo

N_CTX = 512
TIGHT = replace(SETTINGS, n_ctx=N_CTX)
KINDS = {
    "attention": ("target", "target", TIGHT),
    "window": ("sliding", "sliding", TIGHT),
    "window-cut": ("sliding", None, replace(TIGHT, swa_full=False)),
    "hybrid": ("hybrid", "target", TIGHT),
    "recurrent": ("recurrent", None, TIGHT),
    "head": ("deep", "eagle3", TIGHT),
    "block": ("deep", "dspark", TIGHT),
    "mtp": ("mimo", "mimo", TIGHT),
}
ROOMS = range(64, 71)
ANSWER = 90
FORGET = Replay("x", (), (), ())
OLDER = 30
"""Tokens of an answer before."""
DRAFTS = Settings(Sampling(temperature=0), max_tokens=ANSWER, spec="model", draft_length=5)


@dataclass
class InProcess:
    """A session as the parent knows an engine; remembers what it was asked."""

    session: Session
    asked: list[Generate] = field(default_factory=list)

    def generate(self, request: Generate) -> Iterator[Event]:
        self.asked.append(request)
        yield from self.session.generate(request)

    def count(self, count: Count) -> int:
        return self.session.count(count).tokens


@contextmanager
def engine(
    zoo: Zoo, target: str, draft: str | None, settings: ContextSettings
) -> Iterator[InProcess]:
    with loaded(zoo[target], zoo[draft] if draft else None, settings) as session:
        yield InProcess(session)


def how_of(settings: Settings, n_ctx: int = N_CTX, asked: str | None = "chatml") -> How:
    return How(settings, Loaded(n_ctx, asked or "own", asked=asked))


def plain(kind: str, overflow: Overflow, spec: str = "model") -> How:
    spec = spec if KINDS[kind][1] else "off"
    return how_of(replace(DRAFTS, overflow=overflow, spec=spec))


def write(
    engine: InProcess, conversation: Conversation, how: How, choose: Choose = lambda _: "stop"
) -> tuple[Said, list[Event], Writer]:
    writer = Writer(engine, conversation, how, choose)
    events = list(writer.events())
    conversation.hear(events)
    return folded(events), events, writer


def codes(events: list[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


def talked(engine: InProcess, how: How, room: int) -> Conversation:
    """Some short turns, and a question that leaves `room` tokens for its answer."""
    conversation = Conversation(1, "Be kind.")
    brief = replace(how, settings=replace(how.settings, max_tokens=OLDER, spec="off"))
    for question in ("Tell me", "more", "and"):
        conversation.ask(question)
        write(engine, conversation, brief)
    missing = meter(engine, conversation, how, "x").left - room
    conversation.ask("x" + "y" * missing)
    assert meter_of_last(engine, conversation, how) == N_CTX - room
    return conversation


def meter_of_last(engine: InProcess, conversation: Conversation, how: How) -> int:
    return engine.count(Count(messages=conversation.messages(), template=how.loaded.asked))


# --- in the middle of an answer --------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_goes_on_wherever_the_end_of_the_context_meets_it(
    zoo: Zoo, kind: str, request: pytest.FixtureRequest
) -> None:
    """Rounds of six tokens: the end is put at each place of one, inside drafts too."""
    long = request.config.getoption("--long")
    target, draft, settings = KINDS[kind]
    require_same_logits_at_every_width(zoo[target])
    how = plain(kind, "drop")
    with engine(zoo, target, draft, settings) as one, engine(zoo, target, None, settings) as fresh:
        for room in ROOMS if long else ROOMS[::3]:
            conversation = talked(one, how, room)
            one.asked.clear()
            said, events, writer = write(one, conversation, how)
            assert codes(events) == ["context-dropped"]
            assert (said.reason, len(said.ids)) == ("length", ANSWER)
            assert [len(request.begun) for request in one.asked] == [0, room]
            assert conversation.turns[-1].tokens == tuple(said.ids)
            assert conversation.cut.turns == 2
            assert [heard.n for heard in said.rounds] == list(range(len(said.rounds)))
            assert recording.answers([*events, *events]) == [tuple(events)] * 2
            system, *_, last = writer.request.messages
            assert (system.content, last.content) == ("Be kind.", conversation.turns[-1].question)
            # As one that speculates nothing says, and remembers nothing.
            fresh.session.replay(FORGET)
            rest = folded(fresh.generate(replace(writer.request, spec="off")))
            assert [*writer.request.begun, *rest.ids] == said.ids
            fresh.session.replay(FORGET)
            first = folded(fresh.generate(replace(one.asked[0], spec="off")))
            assert (first.ids, first.reason) == (said.ids[:room], "context")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", ["model", "auto", "lookup"])
def test_stopping_there_fills_the_context_to_its_last_token(zoo: Zoo, kind: str, spec: str) -> None:
    target, draft, settings = KINDS[kind]
    how = plain(kind, "stop", spec)
    with engine(zoo, target, draft, settings) as one:
        for room in (1, 2, 3, 5, 7, 13):
            conversation = talked(one, how, room)
            said, events, _ = write(one, conversation, how)
            assert (said.reason, len(said.ids)) == ("context", room)
            assert codes(events) == []
            assert conversation.cut == Cut()
            left = room
            for heard in said.rounds:  # a guess, and the token after it, must have room
                assert heard.drafted <= max(0, left - 1)
                left -= len(heard.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_stands_for_what_is_left_out(zoo: Zoo, kind: str) -> None:
    target, draft, settings = KINDS[kind]
    with engine(zoo, target, draft, settings) as one:
        how = plain(kind, "summarise")
        how = replace(how, settings=replace(how.settings, max_tokens=75))
        conversation = talked(one, how, 70)
        one.asked.clear()
        said, events, _ = write(one, conversation, how)
    assert codes(events) == ["context-summarising", "context-summarised"]
    assert (said.reason, len(said.ids)) == ("length", 75)
    first, summing, second = one.asked
    assert summing.max_tokens == N_CTX // 8
    assert "Summarise" in summing.messages[-1].content
    assert summing.begun == ()
    assert first.messages[1].content == "Tell me"
    assert summing.messages[1].content in ("Tell me", "more"), "what fits beside the question"
    assert second.begun == tuple(said.ids[:70])
    assert conversation.cut.summary
    assert second.messages[0].content == f"Be kind.\n\n{SUMMARY}\n{conversation.cut.summary}"
    assert len(second.messages) < len(first.messages)


# --- before a question is sent --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "room"),
    [
        pytest.param(kind, room, marks=[pytest.mark.long] if room and kind != "attention" else [])
        for kind in KINDS
        for room in (-40, 0, 30)
    ],
)
@pytest.mark.parametrize("overflow", ["drop", "summarise", "ask"])
def test_a_question_for_which_there_is_no_room(
    zoo: Zoo, kind: str, room: int, overflow: Overflow
) -> None:
    target, draft, settings = KINDS[kind]
    asked: list[Full] = []

    def choose(full: Full) -> Overflow:
        asked.append(full)
        return "drop"

    with engine(zoo, target, draft, settings) as one:
        how = plain(kind, overflow)
        how = replace(how, settings=replace(how.settings, max_tokens=40))
        conversation = talked(one, how, room)
        said, events, _ = write(one, conversation, how, choose)
        assert len(said.ids) == 40
        assert len(one.asked[-1].messages) < 8
        again = meter(one, conversation, how, "and then?")
    told = ["context-summarising", "context-summarised"]
    wanted = told if overflow == "summarise" else ["context-dropped"]
    assert codes(events)[: len(wanted)] == wanted
    assert isinstance(events[0], Notice), "before anything is read"
    assert again.dropped == conversation.cut.turns > 0
    assert again.summarised is (overflow == "summarise")
    if overflow == "ask":
        assert asked[0] == Full(N_CTX - room, N_CTX, 3, False, ("drop", "summarise", "stop"))


def test_nothing_is_sent_where_the_person_stops(zoo: Zoo) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "ask")
        conversation = talked(one, how, 30)
        one.asked.clear()
        with pytest.raises(PromptTooLongError, match="The chat has 482 tokens; the context holds"):
            write(one, conversation, how)
        assert one.asked == []
        assert conversation.cut == Cut()


def test_stopped_in_the_middle_it_ends_there(zoo: Zoo) -> None:
    asked: list[Full] = []

    def choose(full: Full) -> Overflow:
        asked.append(full)
        return "stop"

    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "ask")
        conversation = talked(one, how, 70)
        said, events, _ = write(one, conversation, how, choose)
    assert [full.writing for full in asked] == [True]
    assert asked[0].used == N_CTX
    assert (said.reason, len(said.ids)) == ("context", 70)
    assert sum(isinstance(event, Finished) for event in events) == 1


@pytest.mark.parametrize("overflow", ["ask", "drop", "summarise", "stop"])
def test_a_question_that_is_too_long_by_itself(zoo: Zoo, overflow: Overflow) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", overflow)
        conversation = talked(one, how, 64)
        conversation.ask("long " * N_CTX)
        with pytest.raises(PromptTooLongError):
            write(one, conversation, how, lambda _: "drop")
        assert conversation.cut == Cut()


def test_an_answer_that_fills_the_context_by_itself_ends(zoo: Zoo) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = how_of(replace(DRAFTS, overflow="drop", max_tokens=None))
        conversation = talked(one, how, 64)
        said, events, _ = write(one, conversation, how)
    assert said.reason == "context"
    assert set(codes(events)) == {"context-dropped"}
    assert conversation.cut.turns == 3
    assert meter_alone(zoo, conversation, how) + len(said.ids) == N_CTX


def meter_alone(zoo: Zoo, conversation: Conversation, how: How) -> int:
    with engine(zoo, *KINDS["attention"]) as one:
        return meter_of_last(one, conversation, how)


def test_a_text_goes_on_without_its_beginning(zoo: Zoo) -> None:
    """A model that completes: there is nobody to ask for a summary."""
    asked: list[Full] = []

    def choose(full: Full) -> Overflow:
        asked.append(full)
        return "drop"

    with engine(zoo, *KINDS["attention"]) as one:
        how = How(replace(DRAFTS, overflow="ask"), Loaded(N_CTX))
        conversation = Conversation(1)
        for _ in range(7):
            conversation.ask("the one ")
            said, _, writer = write(one, conversation, how, choose)
            assert len(said.ids) == ANSWER
    assert asked
    assert asked[0].choices == ("drop", "stop")
    assert conversation.cut.turns in (1, 2)
    assert writer.request.text.count("the one ") == 7 - conversation.cut.turns


# --- what is left out stays out, on its own path only -----------------------------------------


def test_a_cut_counts_for_the_turns_it_was_made_of() -> None:
    conversation = Conversation(1, "Be kind.")
    for question in ("one", "two", "three"):
        conversation.ask(question)
    conversation.cut = Cut.of(conversation.turns[:2], "They counted.")
    sent = conversation.messages()
    assert [message.content for message in sent] == [
        f"Be kind.\n\n{SUMMARY}\nThey counted.",
        "three",
    ]
    assert conversation.text() == "Be kind.\nthree"
    conversation.undo()
    assert len(conversation.messages(more="other")) == 2, "both are still left out"
    assert [message.content for message in conversation.messages()] == [
        "Be kind.",
        "one",
        "",
        "two",
    ]
    conversation.undo()
    conversation.ask("zwei")
    conversation.ask("drei")
    assert len(conversation.messages()) == 6, "other turns are not cut"


def test_an_answer_is_resumed_without_what_its_end_told(zoo: Zoo) -> None:
    with engine(zoo, "parrot", None, TIGHT) as one:
        how = How(Settings(Sampling(temperature=0), stop=("world",), max_tokens=3), Loaded(N_CTX))
        conversation = Conversation(1)
        conversation.ask("a")
        write(one, conversation, how)
        assert conversation.turns[-1].answer == " Hello, wor", "`wor` was held back to the end"
        turn = conversation.resume()
        assert (turn.answer, turn.reason) == (" Hello, ", None)
        how = replace(how, settings=replace(how.settings, max_tokens=30))
        write(one, conversation, how)
    assert conversation.turns[-1].answer == " Hello, "
    assert conversation.turns[-1].reason == "stop"


class Dying(InProcess):
    """As a process that was killed between two answers."""

    def generate(self, request: Generate) -> Iterator[Event]:
        yield Dead("signal SIGKILL")

    def count(self, count: Count) -> int:
        raise EngineError("The engine stopped.")


def test_a_dead_engine_is_an_event(zoo: Zoo) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "ask")
        conversation = talked(one, how, 64)
        _, events, _ = write(Dying(one.session), conversation, how)
    assert events == [Dead("signal SIGKILL")]


# --- the meter ---------------------------------------------------------------------------------


def test_the_meter_is_exact(zoo: Zoo) -> None:
    with engine(zoo, "chatty", None, replace(TIGHT, n_ctx=2048)) as one:
        how = how_of(Settings(Sampling(temperature=0)), 2048, None)
        conversation = Conversation(1, "Be kind.")
        for question in ("Hi?", "And then?", "Ünïcode 漢字?"):
            foretold = meter(one, conversation, how, question)
            conversation.ask(question)
            said, events, _ = write(one, conversation, how)
            assert said.text == CHAT_TEXT
            read = [event for event in events if isinstance(event, Prefill)]
            assert {event.total for event in read} == {foretold.used}
            assert foretold == Meter(foretold.used, 2048)
            assert foretold.left == 2048 - foretold.used


def test_every_turn_of_a_chat_by_files(zoo: Zoo, tmp_path: Path) -> None:
    """The rounds of an answer in two legs are all heard, in order, by whoever folds them."""
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "drop")
        conversation = talked(one, how, 66)
        said, events, _ = write(one, conversation, how)
    turn = conversation.turns[-1]
    assert turn.answer == said.text
    assert turn.reason == "length"
    rounds = [event for event in events if isinstance(event, Round)]
    assert [token.id for heard in rounds for token in heard.tokens] == said.ids
