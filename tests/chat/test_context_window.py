"""Chats that exceed their context, for every memory type: the chosen policy is applied."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.chat import events_file
from localspec.chat.context_window import (
    AnswerGenerator,
    ContextOverflow,
    OverflowChooser,
    RequestOptions,
    build_count,
    find_largest,
)
from localspec.chat.conversation import (
    SUMMARY_HEADING,
    Conversation,
    DroppedTurns,
    Turn,
)
from localspec.chat.settings import ChatSettings, LoadedModel, OverflowPolicy
from localspec.errors import PromptTooLongError
from localspec.protocol import wire
from localspec.protocol.events import Event, GenerationFinished, Notice
from tests.chat.saved_chats import add_events
from tests.support import sessions
from tests.support.long_cases import often
from tests.support.scripted_engine import ScriptedEngine
from tests.support.zoo import Zoo

N_CTX = 512
TIGHT = replace(sessions.SETTINGS, n_ctx=N_CTX)
KINDS = {
    "attention": ("target", "target", TIGHT), "window": ("sliding", "sliding", TIGHT),
    "window-cut": ("sliding", None, replace(TIGHT, swa_full=False)),
    "hybrid": ("hybrid", "target", TIGHT), "recurrent": ("recurrent", None, TIGHT),
    "head": ("deep", "eagle3", TIGHT), "block": ("deep", "dspark", TIGHT),
    "mtp": ("mimo", "mimo", TIGHT),
}  # fmt: skip
ROOMS = range(64, 71)
ANSWER = 90
FORGET = wire.ReplayCommand("x", (), (), ())
OLDER = 30
"""Tokens of the earlier answers."""
DRAFTS = ChatSettings(
    wire.SamplingParams(temperature=0), max_tokens=ANSWER, spec="model", draft_length=5
)


@contextmanager
def engine(
    zoo: Zoo, target: str, draft: str | None, settings: wire.ContextSettings
) -> Iterator[sessions.InProcess]:
    with sessions.loaded(
        zoo[target], zoo[draft] if draft else None, settings
    ) as session:
        yield sessions.InProcess(session)


def how_of(settings: ChatSettings) -> RequestOptions:
    return RequestOptions(
        settings, LoadedModel(N_CTX, "chatml", template_override="chatml")
    )


def plain(kind: str, overflow: OverflowPolicy, spec: str = "model") -> RequestOptions:
    spec = spec if KINDS[kind][1] else "off"
    return how_of(replace(DRAFTS, overflow=overflow, spec=spec))


def write(
    engine: sessions.InProcess,
    conversation: Conversation,
    how: RequestOptions,
    choose: OverflowChooser = lambda _: "stop",
) -> tuple[sessions.Said, list[Event], AnswerGenerator]:
    writer = AnswerGenerator(engine, conversation, how, choose)
    events = [delta.event for delta in writer.stream()]
    add_events(conversation, events)
    return sessions.folded(events), events, writer


class Person:
    """Always chooses the same, and remembers what was asked."""

    def __init__(self, choice: OverflowPolicy) -> None:
        self.choice = choice
        self.asked = list[ContextOverflow]()

    def __call__(self, full: ContextOverflow) -> OverflowPolicy:
        self.asked.append(full)
        return self.choice


def codes(events: list[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


def talked(engine: sessions.InProcess, how: RequestOptions, room: int) -> Conversation:
    """Some short turns, and a question that leaves `room` tokens for its answer."""
    conversation = Conversation(1, "Be kind.")
    brief = replace(how, settings=replace(how.settings, max_tokens=OLDER, spec="off"))
    for question in ("Tell me", "more", "and"):
        conversation.ask(question)
        write(engine, conversation, brief)
    conversation.ask("x")
    counted = engine.count(build_count(conversation, how))
    missing = N_CTX - counted.tokens - room
    conversation.undo()
    conversation.ask("x" + "y" * missing)
    assert meter_of_last(engine, conversation, how) == N_CTX - room
    return conversation


def meter_of_last(
    engine: sessions.InProcess, conversation: Conversation, how: RequestOptions
) -> int:
    command = wire.CountCommand(
        messages=conversation.messages(), template=how.loaded.template_override
    )
    return engine.count(command).tokens


@pytest.mark.parametrize(
    "kind", often(KINDS.keys(), ("attention", "hybrid", "head", "mtp"))
)
def test_an_answer_goes_on_at_any_end(
    zoo: Zoo, kind: str, request: pytest.FixtureRequest
) -> None:
    """Rounds of six tokens: the context ends at each position of a round, inside drafts
    too.
    """
    long = request.config.getoption("--long")
    target, draft, settings = KINDS[kind]
    sessions.require_same_logits_at_every_width(zoo[target])
    how = plain(kind, "drop")
    with (
        engine(zoo, target, draft, settings) as one,
        engine(zoo, target, None, settings) as fresh,
    ):
        for room in ROOMS if long else ROOMS[::4]:
            conversation = talked(one, how, room)
            one.asked.clear()
            said, events, writer = write(one, conversation, how)
            assert codes(events) == ["context-dropped"]
            assert (said.reason, len(said.ids)) == ("length", ANSWER)
            assert [len(request.resumed_tokens) for request in one.asked] == [0, room]
            assert conversation.turns[-1].tokens == tuple(said.ids)
            assert conversation.dropped.turns == 2
            assert [heard.n for heard in said.rounds] == list(range(len(said.rounds)))
            assert events_file.split_answers([*events, *events]) == [tuple(events)] * 2
            system, *_, last = writer.request.messages
            assert (system.content, last.content) == (
                "Be kind.",
                conversation.turns[-1].question,
            )
            # The reference: no speculation, no reuse.
            fresh.session.replay(FORGET)
            rest = sessions.folded(fresh.generate(replace(writer.request, spec="off")))
            assert [*writer.request.resumed_tokens, *rest.ids] == said.ids
            fresh.session.replay(FORGET)
            first = sessions.folded(fresh.generate(replace(one.asked[0], spec="off")))
            assert (first.ids, first.reason) == (said.ids[:room], "context")


@pytest.mark.parametrize(
    "kind", often(KINDS.keys(), ("attention", "window-cut", "hybrid", "mtp"))
)
def test_stopping_there_fills_the_context_to_its_last_token(
    zoo: Zoo, kind: str
) -> None:
    target, draft, settings = KINDS[kind]
    rooms = {"model": (1, 2, 7), "auto": (3, 13), "lookup": (5,)}
    with engine(zoo, target, draft, settings) as one:
        for spec, room in (
            (spec, room) for spec, some in rooms.items() for room in some
        ):
            how = plain(kind, "stop", spec)
            conversation = talked(one, how, room)
            said, events, _ = write(one, conversation, how)
            assert (said.reason, len(said.ids)) == ("context", room) and codes(
                events
            ) == []
            assert conversation.dropped == DroppedTurns()
            left = room
            for heard in said.rounds:  # a draft token and the token after it must fit
                assert heard.drafted <= max(0, left - 1)
                left -= len(heard.tokens)


@pytest.mark.parametrize(
    "kind", often(KINDS.keys(), ("attention", "window-cut", "hybrid", "mtp"))
)
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
    assert (
        summing.max_tokens == N_CTX // 8 and "Summarise" in summing.messages[-1].content
    )
    assert summing.resumed_tokens == () and first.messages[1].content == "Tell me"
    assert summing.messages[1].content in ("Tell me", "more"), (
        "what fits beside the question"
    )
    assert (
        second.resumed_tokens == tuple(said.ids[:70]) and conversation.dropped.summary
    )
    assert (
        second.messages[0].content
        == f"Be kind.\n\n{SUMMARY_HEADING}\n{conversation.dropped.summary}"
    )
    assert len(second.messages) < len(first.messages)


@pytest.mark.parametrize(
    ("kind", "room", "overflow"),
    [
        ("attention", -40, "drop"),
        ("attention", 0, "ask"),
        ("attention", 30, "summarise"),
        ("hybrid", 0, "drop"),
        ("head", 0, "drop"),
    ],
)
def test_a_question_without_room(
    zoo: Zoo, kind: str, room: int, overflow: OverflowPolicy
) -> None:
    target, draft, settings = KINDS[kind]
    choose = Person("drop")
    with engine(zoo, target, draft, settings) as one:
        how = plain(kind, overflow)
        how = replace(how, settings=replace(how.settings, max_tokens=40))
        conversation = talked(one, how, room)
        said, events, _ = write(one, conversation, how, choose)
        assert len(said.ids) == 40 and len(one.asked[-1].messages) < 8
    told = ["context-summarising", "context-summarised"]
    wanted = told if overflow == "summarise" else ["context-dropped"]
    assert codes(events)[: len(wanted)] == wanted
    assert isinstance(events[0], Notice), "before anything is read"
    assert conversation.dropped.turns > 0
    assert bool(conversation.dropped.summary) is (overflow == "summarise")
    if overflow == "ask":
        assert choose.asked[0] == ContextOverflow(
            N_CTX - room, N_CTX, 3, False, ("drop", "summarise", "stop")
        )


def test_where_the_person_stops_nothing_is_sent_and_an_answer_ends(zoo: Zoo) -> None:
    choose = Person("stop")
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "ask")
        conversation = talked(one, how, 30)
        one.asked.clear()
        with pytest.raises(PromptTooLongError, match=r"exceeds the context \(482 / "):
            write(one, conversation, how)
        assert one.asked == [] and conversation.dropped == DroppedTurns()
        conversation = talked(one, how, 70)
        said, events, _ = write(one, conversation, how, choose)
    (full,) = choose.asked
    assert full.mid_answer and full.used == N_CTX
    assert (said.reason, len(said.ids)) == ("context", 70)
    assert sum(isinstance(event, GenerationFinished) for event in events) == 1


def test_a_question_that_is_too_long_by_itself(zoo: Zoo) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = plain("attention", "ask")
        conversation = talked(one, how, 64)
        conversation.ask("long " * N_CTX)
        with pytest.raises(PromptTooLongError):
            write(one, conversation, how, lambda _: "drop")
        assert conversation.dropped == DroppedTurns()


def test_an_answer_that_fills_the_context_by_itself_ends(zoo: Zoo) -> None:
    with engine(zoo, *KINDS["attention"]) as one:
        how = how_of(replace(DRAFTS, overflow="drop", max_tokens=None))
        conversation = talked(one, how, 64)
        said, events, _ = write(one, conversation, how)
        assert meter_of_last(one, conversation, how) + len(said.ids) == N_CTX
    assert said.reason == "context" and set(codes(events)) == {"context-dropped"}
    assert conversation.dropped.turns == 3


def test_a_text_goes_on_without_its_beginning(zoo: Zoo) -> None:
    """A completion model cannot write a summary."""
    choose = Person("drop")
    with engine(zoo, *KINDS["attention"]) as one:
        how = RequestOptions(replace(DRAFTS, overflow="ask"), LoadedModel(N_CTX))
        conversation = Conversation(1)
        for _ in range(7):
            conversation.ask("the one ")
            said, _, writer = write(one, conversation, how, choose)
            assert len(said.ids) == ANSWER
    assert choose.asked[0].choices == (
        "drop",
        "stop",
    ) and conversation.dropped.turns in (1, 2)
    assert writer.request.text.count("the one ") == 7 - conversation.dropped.turns


@given(st.integers(0, 2_000), st.integers(0, 2_000))
def test_the_largest_number_that_fits_is_found_without_trying_much_larger_ones(
    most: int, limit: int
) -> None:
    tried: list[int] = []

    def fits(n: int) -> bool:
        tried.append(n)
        return n <= limit

    found = find_largest(most, fits)

    assert found == min(most, limit)
    assert all(1 <= n <= min(most, max(1, 2 * limit)) for n in tried)
    assert len(tried) == len(set(tried)) <= 2 * limit.bit_length() + 1


class CountingEngine(ScriptedEngine):
    """A token a message; remembers how many messages were counted."""

    def __init__(self, n_ctx: int) -> None:
        super().__init__(
            lambda: [GenerationFinished("eog")], sizes=self._count_messages
        )
        self.n_ctx = n_ctx
        self.counted: list[int] = []

    def _count_messages(self, n_messages: int) -> int:
        self.counted.append(n_messages)
        return n_messages


@pytest.mark.parametrize("overflow", ["drop", "summarise"])
def test_a_chat_of_two_thousand_turns_is_counted_once_as_a_whole(
    overflow: OverflowPolicy,
) -> None:
    engine = CountingEngine(n_ctx=400)
    turns = [Turn("q", "a", "eog", id=1)]
    turns += [Turn("q", "a", "eog", id=n, parent=n - 1) for n in range(2, 2_001)]
    conversation = Conversation(1, "", turns, head=2_000)
    conversation.ask("and now?")
    loaded = LoadedModel(engine.n_ctx, "chatml", template_override="chatml")
    options = RequestOptions(replace(DRAFTS, overflow=overflow), loaded)

    list(AnswerGenerator(engine, conversation, options).stream())

    assert conversation.dropped.turns == 2_000 - 149, "a quarter of the context is free"
    assert engine.counted[0] == 4_001
    assert max(engine.counted[1:]) <= 2 * engine.n_ctx


def test_a_cut_counts_for_the_turns_it_was_made_of() -> None:
    conversation = Conversation(1, "Be kind.")
    for question in ("one", "two", "three"):
        conversation.ask(question)
    conversation.dropped = DroppedTurns.from_turns(
        conversation.turns[:2], "They counted."
    )

    def sent() -> list[str]:
        return [message.content for message in conversation.messages()]

    assert sent() == [f"Be kind.\n\n{SUMMARY_HEADING}\nThey counted.", "three"]
    assert conversation.prompt_text() == "Be kind.\nthree"
    conversation.undo()
    conversation.ask("other")
    assert len(sent()) == 2, "both are still left out"
    conversation.undo()
    assert sent() == ["Be kind.", "one", "", "two"]
    conversation.undo()
    conversation.ask("zwei")
    conversation.ask("drei")
    assert len(sent()) == 6, "other turns are not cut"
