"""A full context with tools in the chat: a question is dropped with all its steps."""

import pytest
from msgspec.structs import replace

from localspec.chat.context_window import AnswerGenerator, RequestOptions
from localspec.chat.conversation import CallResult, Conversation
from localspec.chat.settings import ChatSettings, LoadedModel, OverflowPolicy
from localspec.protocol.events import Notice
from localspec.protocol.wire import CountCommand, CountResult, ToolCall
from tests.chat.saved_chats import add_events, answer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import answer as script

N_CTX = 1_000
STEPS = (1, 2, 0, 1, 2)
"""The tool steps of each earlier question."""


class CountingEngine(ScriptedEngine):
    """A token has four characters, and a message costs ten tokens."""

    def count(self, count: CountCommand) -> CountResult:
        n_tokens = len(count.tools) // 4
        for message in count.messages:
            n_tokens += 10 + len(message.content) // 4
        return CountResult(n_tokens)


def add_question(conversation: Conversation, question: str, n_steps: int) -> None:
    """A question, calls with results of 200 characters, and an answer."""
    conversation.ask(question)
    for step in range(n_steps):
        turn = add_events(conversation, answer("Let me see."))
        call = ToolCall(f"{question}{step}", "time_now", "{}")
        conversation.update_turn(replace(turn, calls=(call,), call_format="generic"))
        result = CallResult(call.id, "time.now", "x" * 200, False, "once")
        conversation.add_results([result])
    add_events(conversation, answer("Done."))


def fill(conversation: Conversation, n_characters: int) -> None:
    """Questions with steps, and one of this length."""
    for i, n_steps in enumerate(STEPS):
        add_question(conversation, f"q{i}", n_steps)
    conversation.ask("?" * n_characters)


def make_engine() -> CountingEngine:
    return CountingEngine(lambda: script(["A summary."]))


def generate(
    conversation: Conversation,
    overflow: OverflowPolicy = "drop",
    tools: str = "",
    engine: CountingEngine | None = None,
) -> list[Notice]:
    options = RequestOptions(
        ChatSettings(overflow=overflow), LoadedModel(N_CTX, "own"), tools=tools
    )
    if engine is None:
        engine = make_engine()
    generator = AnswerGenerator(engine, conversation, options)
    events = [delta.event for delta in generator.stream()]
    return [event for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize("overflow", ["drop", "summarise"])
def test_no_result_is_separated_from_its_call(overflow: OverflowPolicy) -> None:
    n_dropped: set[int] = set()
    for n_characters in range(600, 3_200, 100):
        conversation = Conversation(1)
        fill(conversation, n_characters)

        generate(conversation, overflow)

        n_turns = conversation.dropped.turns
        assert not conversation.turns[n_turns].is_tool_step
        messages = conversation.messages()
        roles = [message.role for message in messages if message.role != "system"]
        assert roles[0] == "user"
        n_dropped.add(n_turns)
    assert len(n_dropped) > 2, "different numbers of turns were dropped"


def test_what_is_summarised_begins_with_a_question() -> None:
    n_messages: set[int] = set()
    for n_earlier in range(4, 30):
        conversation = Conversation(1)
        for i in range(n_earlier):
            add_question(conversation, f"q{i}", STEPS[i % len(STEPS)])
        conversation.ask("And now?")
        engine = make_engine()

        generate(conversation, "summarise", engine=engine)

        summary_request = engine.asked[0]
        roles = [message.role for message in summary_request.messages]
        assert roles[0] == "user"
        n_messages.add(len(roles))
    assert len(n_messages) > 2, "the oldest turns were left out, too"


def test_the_steps_of_the_question_itself_stay() -> None:
    conversation = Conversation(1)
    fill(conversation, 1_500)
    turn = add_events(conversation, answer("Let me see."))
    call = ToolCall("last", "time_now", "{}")
    conversation.update_turn(replace(turn, calls=(call,), call_format="generic"))
    result = CallResult("last", "time.now", "y" * 1_200, False, "once")
    conversation.add_results([result])

    generate(conversation)

    roles = [message.role for message in conversation.messages()]
    assert roles == ["user", "assistant", "tool"]


def test_a_question_with_steps_counts_as_one_turn() -> None:
    conversation = Conversation(1)
    fill(conversation, 2_600)

    (notice,) = generate(conversation)

    assert conversation.dropped.turns == len(conversation.turns) - 1
    assert "the 5 oldest turns are no longer sent" in notice.message


def test_the_tools_that_are_offered_are_counted() -> None:
    conversation = Conversation(1)
    fill(conversation, 400)
    assert generate(conversation) == []

    (notice,) = generate(conversation, tools="t" * 1_600)

    assert notice.code == "context-dropped"


def test_a_conversation_whose_first_turns_differ_drops_nothing() -> None:
    conversation = Conversation(1)
    fill(conversation, 2_600)
    generate(conversation)
    other = Conversation(1)
    fill(other, 1)

    other.dropped = conversation.dropped
    same = other.active_dropped.turns
    step = other.turns[1]
    changed = replace(step.results[0], text="changed")
    other.update_turn(replace(step, results=(changed,)))

    assert same == conversation.dropped.turns
    assert other.active_dropped.turns == 0
