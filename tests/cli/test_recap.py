"""What `run --continue` prints of a chat whose questions were answered with calls."""

from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from localspec.chat.conversation import CallResult, Conversation
from localspec.chat.history import ChatHistory
from localspec.cli import run
from localspec.protocol.wire import ToolCall
from tests.chat.saved_chats import about, add_events, answer


def recap(tmp_path: Path, n_questions: int, *, is_answered: bool = True) -> list[str]:
    """The recap of a chat of questions with one call each."""
    conversation = Conversation(1)
    for n in range(n_questions):
        conversation.ask(f"How late is it now, {n}?")
        turn = add_events(conversation, answer("Let me see."))
        call = ToolCall(f"{n}", "time_now", "{}")
        conversation.update_turn(replace(turn, calls=(call,), call_format="generic"))
        if is_answered:
            text = f"{n} o'clock\x1b[2J\nand more"
            conversation.add_results(
                [CallResult(call.id, "time.now", text, False, "once")]
            )
            add_events(conversation, answer(f"It is {n}."))
    with closing(ChatHistory.open(tmp_path / "chats.sqlite")) as history:
        location = history.save_chat(None, about(conversation), conversation.all_turns)
        chat = history.load_chat(location.chat_id)
    return list(run._format_recap(chat, plain=False))


def test_a_recap_counts_questions_and_shows_the_steps_of_the_last(
    tmp_path: Path,
) -> None:
    first, dots, *lines = recap(tmp_path, 3)

    assert first.startswith("Chat 1, 3 turns: ")
    assert dots == "…"
    assert lines[:4] == [
        "> How late is it now, 1?",
        "Let me see.",
        "time.now: 1 o'clock and more",
        "It is 1.",
    ]
    assert len(lines) == 8


def test_a_call_without_a_result_is_an_interrupted_answer(tmp_path: Path) -> None:
    *_, last = recap(tmp_path, 1, is_answered=False)

    assert last.startswith("The last answer was interrupted.")
