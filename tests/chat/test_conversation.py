"""The turn tree of a chat, and the prompts it sends."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat import conversation as conversation_module
from localspec.chat.conversation import (
    Attachment,
    CallResult,
    Conversation,
    DroppedTurns,
    Turn,
    format_question,
)
from localspec.protocol.events import GenerationFinished, Prefill
from localspec.protocol.wire import ChatMessage, ToolCall
from tests.chat.saved_chats import add_events, chat
from tests.chat.saved_chats import spoken as said
from tests.support.chat_pictures import attachment


def test_a_chat_model_is_asked_with_every_turn_so_far() -> None:
    conversation = chat(("a", "b"))
    conversation.ask("c")
    assert conversation.messages() == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "a"),
        ChatMessage("assistant", "b", (0, 1)),
        ChatMessage("user", "c"),
    )


def test_an_answer_that_began_inside_its_thinking_says_so() -> None:
    """One that was cut by the limit has no tag at all."""
    conversation = Conversation(5)
    conversation.ask("a")
    add_events(
        conversation, [Prefill(1, 1, 0, True), said("hm"), GenerationFinished("length")]
    )
    conversation.ask("b")
    assert [message.starts_in_thinking for message in conversation.messages()] == [
        0,
        1,
        0,
    ]


def test_a_completion_model_is_asked_with_one_text() -> None:
    conversation = chat(("def f():", "\n    pass"), ("x = ", "1\n"), system="")
    conversation.ask("y")
    assert conversation.prompt_text() == "def f():\n    pass\nx = 1\ny"
    conversation = chat(("def f(", "x"), system="")
    conversation.ask("")  # goes on with the text as it is
    assert conversation.prompt_text() == "def f(x"


def test_files_go_before_the_question() -> None:
    files = (Attachment("a.py", "import os"), Attachment("b.md", "```\ncode\n```"))
    conversation = Conversation(5)
    conversation.ask("what is this?", files)
    assert conversation.messages() == (
        ChatMessage(
            "user",
            "a.py:\n```\nimport os\n```\n\nb.md:\n````\n```\ncode\n```\n````\n\nwhat is this?",
        ),
    )
    assert conversation.prompt_text() == "import os\n\n```\ncode\n```\n\nwhat is this?"
    assert (
        format_question(Turn("", attachments=files[:1])) == "a.py:\n```\nimport os\n```"
    )
    for changed in (
        conversation.retry(),
        conversation.edit_turn(conversation.turns[-1].id, "and?"),
    ):
        assert changed.attachments == files


def test_a_retry_differs_and_a_replay_does_not() -> None:
    one = chat(("a", "b"))
    same = chat(("a", "b"))
    first = one.derive_seed()
    assert first == same.derive_seed()
    one.retry()
    assert (
        one.derive_seed() != first
        and one.turns[-1].question == "a"
        and not one.turns[-1].answer
    )
    same.ask("a")
    assert 0 <= same.derive_seed() < 2**63 and same.derive_seed() != first


FILLED = Turn(
    question="q",
    answer="a",
    finish_reason="eog",
    attempt=2,
    events=(GenerationFinished("eog"),),
    attachments=(Attachment("a.py", "import os"),),
    pictures=(attachment(),),
    id=3,
    parent=1,
    model="Qwen3 8B",
    calls=(ToolCall("1", "time_now", "{}"),),
    call_format="generic",
    results=(CallResult("0", "time.now", "12:04", False, "once"),),
)
ANSWER_FIELDS = {
    "answer",
    "finish_reason",
    "events",
    "model",
    "calls",
    "call_format",
}


def test_a_turn_without_its_answer_keeps_every_other_field() -> None:
    """Also a field that is added later: then this table says which kind it is."""
    empty = Turn("")
    for name in Turn.__struct_fields__:
        assert getattr(FILLED, name) != getattr(empty, name), "the case is complete"

    question = FILLED.without_answer()

    for name in Turn.__struct_fields__:
        source = empty if name in ANSWER_FIELDS else FILLED
        assert getattr(question, name) == getattr(source, name), name


def test_a_copy_does_not_change_with_the_conversation() -> None:
    conversation = chat(("a", "b"), ("c", "d"))
    conversation.dropped = DroppedTurns.from_turns(conversation.turns[:1])
    copy = conversation.copy()
    shown = copy.turns

    conversation.undo()
    conversation.ask("e")
    conversation.system = "be loud"

    assert copy.turns == copy.all_turns == shown
    assert (copy.system, copy.system_since) == ("be brief", 0)
    assert copy.active_dropped.turns == 1


def test_what_is_left_out_is_checked_again_only_when_the_path_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The status bar asks 25 times a second, in a chat of thousands of turns."""
    conversation = chat(*[("q", f"a{n}") for n in range(10)])
    conversation.dropped = DroppedTurns.from_turns(conversation.turns[:5])
    sums: list[int] = []
    compute = conversation_module._checksum

    def count(turns: Sequence[Turn]) -> int:
        sums.append(len(turns))
        return compute(turns)

    monkeypatch.setattr(conversation_module, "_checksum", count)

    for n in range(10):
        assert conversation.active_dropped.turns == 5
        conversation.ask(f"more {n}")
    assert sums == [5]

    conversation.undo_to(3)
    assert conversation.active_dropped == DroppedTurns()
    conversation.switch_branch(3)
    assert conversation.active_dropped.turns == 5


def test_a_branch_is_shown_as_far_as_it_was_last_written() -> None:
    conversation = chat(("a", "b"), ("c", "d"), ("e", "f"))
    first, second, third = conversation.turns
    conversation.retry()  # a sibling of the third
    conversation.edit_turn(second.id, "C")
    conversation.switch_branch(first.id)
    # the newest leaf
    assert [turn.question for turn in conversation.turns] == [
        "a",
        "C",
    ]
    conversation.switch_branch(second.id)
    assert conversation.turns[-1].attempt == 1  # the newest below the second
    conversation.switch_branch(third.id)
    assert conversation.turns[-1] == third


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ask", "retry", "restart_answer", "edit", "undo", "switch"]),
        st.integers(0, 50),
    ),
    max_size=30,
)


@given(MOVES)
def test_whatever_is_done_nothing_is_lost(moves: list[tuple[str, int]]) -> None:
    """No answer is lost, siblings have different seeds, the path is connected."""
    conversation = Conversation(3)
    answers: dict[int, tuple[str, str]] = {}
    for number, (move, where) in enumerate(moves):
        turns = conversation.turns
        anyone = (
            conversation.all_turns[where % len(conversation.all_turns)].id
            if turns
            else 0
        )
        if move == "ask" or not turns:
            conversation.ask(f"q{number}")
        elif move == "edit":
            conversation.edit_turn(anyone, f"q{number}")
        elif move == "switch":
            conversation.switch_branch(anyone)
        else:
            getattr(conversation, move)()
        last = conversation.turns[-1] if conversation.turns else None
        if last is not None and not last.answer:
            last = add_events(
                conversation, [said(f"a{number}"), GenerationFinished("eog")]
            )
            answers[last.id] = (last.question, last.answer)
        sound(conversation, answers)


def sound(conversation: Conversation, answers: dict[int, tuple[str, str]]) -> None:
    assert {
        turn.id: (turn.question, turn.answer) for turn in conversation.all_turns
    } == answers
    path = conversation.turns
    assert [turn.parent for turn in path] == [None, *(turn.id for turn in path)][
        : len(path)
    ]
    assert conversation.head == (path[-1].id if path else None)
    for turn in conversation.all_turns:
        assert turn.parent is None or turn.parent < turn.id
        branches = conversation.branches(turn.id)
        assert turn in branches and len({branch.attempt for branch in branches}) == len(
            branches
        )
    kept = Conversation(3, "", conversation.all_turns, conversation.head)
    assert (kept.all_turns, kept.turns) == (conversation.all_turns, path)
