"""Tools in a chat: the model calls, a person decides, and the results go back to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.chat.answer_calls import AnswerCallReader
from localspec.chat.front_end import CommandResult
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.chat.slash_commands import CommandCall, change_session
from localspec.chat.tool_loop import CallRunner, CallState
from localspec.config import toml_file
from localspec.errors import (
    EngineError,
    LocalspecError,
    PromptTooLongError,
    UsageError,
)
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import EngineExit
from localspec.protocol.wire import CountCommand, CountResult, ToolCall
from localspec.report.answer_stats import format_stats
from localspec.report.lines import plain_text
from localspec.report.speculation import view_speculation
from localspec.tools.approval import Approvals, CallDecision
from localspec.tools.folder_tools import FolderTools
from localspec.tools.tool_types import ResultPicture, ToolResult
from localspec.tools.toolbox import Toolbox
from tests.support.chat_pictures import PHOTO
from tests.support.fake_tools import (
    FakeTools,
    Person,
    make_tools,
    returning,
    write_call,
)
from tests.support.scenes import PAIR
from tests.support.scripted_engine import (
    Gate,
    ScriptedEngine,
    answer,
    pieces,
    ready,
)

ADD = write_call("fake_add", a=1, b=2)
ANSWERED = "It is 3."


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(tmp_path / "chats.sqlite")) as opened:
        yield opened


class Talk:
    """A session with the tools of `make_tools`, whose engine plays these answers."""

    def __init__(
        self,
        *answers: Any,
        person: Person | None = None,
        history: ChatHistory | None = None,
        **model: Any,
    ) -> None:
        scripts = [_make_script(each) for each in answers]
        self.engine = ScriptedEngine(*scripts, ready=ready(**model))
        self.person = person or Person()
        self.tools = make_tools()
        self.session = ChatSession(PAIR, 1, history)
        self.session.toolbox = Toolbox([self.tools])
        self.session.attach_engine(self.engine)
        self.shown = ""

    def ask(self, question: str = "What is 1 + 2?") -> None:
        self.session.ask(question)
        self.hear()

    def hear(self) -> None:
        stream = self.session.stream_answer(self.engine, tools=self.person)
        self.shown = ""
        for delta in stream:
            self.shown += "".join(
                part.text for part in delta.parts if not part.is_thinking
            )

    @property
    def path(self) -> list[tuple[str, str, list[str]]]:
        """Question, visible answer and results of each turn."""
        turns = []
        for turn in self.session.conversation.turns:
            texts = [result.text for result in turn.results]
            turns.append((turn.question, turn.visible_answer(None), texts))
        return turns

    @property
    def verdicts(self) -> list[str]:
        verdicts: list[str] = []
        for turn in self.session.conversation.turns:
            verdicts += [result.verdict for result in turn.results]
        return verdicts


def run_command(session: ChatSession, argument: str) -> CommandResult:
    """Runs `/turns` with an argument."""
    return change_session(session, CommandCall("turns", argument))


def _make_script(given: Any) -> Any:
    """A text becomes an answer of small tokens; a list is a script itself."""
    if isinstance(given, str):
        return lambda: answer(pieces(given))
    return lambda: given


# --- one call


def test_a_call_is_asked_about_and_its_result_is_answered() -> None:
    talk = Talk(f"Let me see. {ADD}", ANSWERED)

    talk.ask()

    assert talk.tools.ran == [("add", {"a": 1, "b": 2})]
    assert [request.full_name for request in talk.person.asked] == ["fake.add"]
    assert talk.path == [
        ("What is 1 + 2?", "Let me see.", []),
        ("", ANSWERED, ["3"]),
    ]
    assert talk.verdicts == ["once"]


def test_a_call_is_shown_as_it_is_written_asked_about_and_run() -> None:
    talk = Talk(ADD, ANSWERED)

    talk.ask()

    assert talk.person.phases == ["writing", "asking", "running", "done"]
    first = talk.person.states[0].request
    assert first.name == "fake_add" and not first.problem
    (step,) = talk.person.turns
    assert step.is_tool_step and step.results[0].text == "3"


def test_the_text_of_a_call_is_no_part_of_the_answer() -> None:
    talk = Talk(f"Let me see.\n\n{ADD}", ANSWERED)

    talk.ask()

    assert talk.shown == f"Let me see.{ANSWERED}"
    assert "<tool_call>" in talk.session.conversation.turns[0].answer


def test_the_model_receives_the_call_and_its_result() -> None:
    talk = Talk(f"So: {ADD}", ANSWERED)

    talk.ask()

    first, second = talk.engine.asked
    assert json.loads(first.tools)[0]["function"]["name"] == "fake_add"
    assert second.tools == first.tools
    question, call, result = second.messages
    assert question.content == "What is 1 + 2?"
    assert (call.role, call.content) == ("assistant", "So:")
    assert call.tool_calls[0].name == "fake_add"
    assert json.loads(call.tool_calls[0].arguments) == {"a": 1, "b": 2}
    assert (result.role, result.content) == ("tool", "3")
    assert result.tool_call_id == call.tool_calls[0].id
    assert call.tokens == talk.session.conversation.turns[0].tokens


def test_each_step_has_its_own_seed() -> None:
    talk = Talk(ADD, ANSWERED)

    talk.ask()

    first, second = talk.engine.asked
    assert first.sampling.seed != second.sampling.seed


def test_a_front_end_without_tools_offers_none() -> None:
    talk = Talk(ANSWERED)
    talk.session.ask("Hello")

    list(talk.session.stream_answer(talk.engine))

    assert talk.engine.asked[0].tools == ""


def test_a_model_without_a_template_is_offered_no_tools() -> None:
    talk = Talk(ADD, chats=False)

    talk.ask()

    assert not talk.session.calls_tools
    assert talk.engine.asked[0].tools == "" and talk.tools.ran == []


def test_thinking_before_a_call_goes_back_as_thinking() -> None:
    thinking = ("<think>", "</think>")
    talk = Talk(f"<think>I add.</think>Well. {ADD}", ANSWERED, thinking=thinking)

    talk.ask()

    call = talk.engine.asked[1].messages[1]
    assert (call.reasoning, call.content) == ("I add.", "Well.")


def test_a_call_with_which_thinking_ends_is_a_call() -> None:
    thinking = ("<think>", "</think>")
    talk = Talk(f"<think>I add. {ADD}", ANSWERED, thinking=thinking)

    talk.ask()

    assert talk.tools.ran == [("add", {"a": 1, "b": 2})]
    assert talk.session.conversation.turns[0].visible_answer(thinking) == ""


def test_a_call_that_thinking_only_mentions_does_not_run() -> None:
    thinking = ("<think>", "</think>")
    talk = Talk(f"<think>I could {ADD} but no.</think>Three.", thinking=thinking)

    talk.ask()

    assert talk.tools.ran == []
    assert talk.shown == "Three."


# --- decisions


def test_a_refusal_is_told_to_the_model_with_its_reason() -> None:
    person = Person(CallDecision("no", "Use your head."))
    talk = Talk(ADD, ANSWERED, person=person)

    talk.ask()

    assert talk.tools.ran == []
    assert person.phases == ["writing", "asking", "refused"]
    result = talk.engine.asked[1].messages[-1].content
    assert result == "The user refused this call. Reason: Use your head."
    assert talk.verdicts == ["no"]


def test_what_is_allowed_for_the_chat_is_asked_once() -> None:
    talk = Talk(ADD, ADD, ANSWERED, person=Person(CallDecision("chat")))

    talk.ask()

    assert len(talk.person.asked) == 1 and len(talk.tools.ran) == 2


def test_a_new_chat_is_asked_again() -> None:
    talk = Talk(ADD, ANSWERED, ADD, ANSWERED, person=Person(CallDecision("chat")))
    talk.ask()

    talk.session.start_new_chat()
    talk.ask()

    assert len(talk.person.asked) == 2


def test_an_approval_that_cannot_be_saved_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "data" / "tool-approvals.json").mkdir(parents=True)
    talk = Talk(ADD, ANSWERED, person=Person(CallDecision("always")))

    talk.ask()

    assert talk.tools.ran == [] and talk.verdicts == ["no"]


# --- wrong calls


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (write_call("fake_sub", a=1), "There is no tool 'fake_sub'."),
        (write_call("fake_add", a=1), "b is missing"),
    ],
)
def test_a_wrong_call_is_an_error_for_the_model_and_is_not_asked(
    call: str, told: str
) -> None:
    talk = Talk(call, ADD, ANSWERED)

    talk.ask()

    assert told in talk.path[1][2][0]
    assert talk.verdicts == ["wrong", "once"]
    assert len(talk.person.asked) == 1
    assert talk.person.phases[:2] == ["writing", "failed"]


def test_several_calls_of_one_answer_get_results_in_their_order() -> None:
    calls = "\n".join([ADD, write_call("nothing"), write_call("fake_fail")])
    talk = Talk(calls, ANSWERED)

    talk.ask()

    results = talk.session.conversation.turns[1].results
    assert [result.tool for result in results] == ["fake.add", "nothing", "fake.fail"]
    assert [result.is_error for result in results] == [False, True, True]
    ids = [result.call_id for result in results]
    assert ids == [call.id for call in talk.session.conversation.turns[0].calls]
    assert len(set(ids)) == 3


def test_a_tool_that_raises_costs_only_its_call() -> None:
    def explode(*_: Any) -> ToolResult:
        raise ZeroDivisionError("by zero")

    talk = Talk(write_call("fake_explode"), ANSWERED)
    talk.tools.offer("explode", explode)

    talk.ask()

    assert talk.path[1] == ("", ANSWERED, ["ZeroDivisionError: by zero"])


def test_a_server_that_fails_is_reported_to_the_person_too() -> None:
    failure = "The server fake is not connected: it ended."
    talk = Talk(write_call("fake_gone"), ANSWERED)
    result = ToolResult(failure, is_error=True, failure=failure)
    talk.tools.offer("gone", lambda *_: result)

    talk.ask()

    (notice,) = talk.session.take_notices()
    assert (notice.code, notice.message) == ("tool-server", failure)


def test_after_the_most_calls_the_model_is_offered_none() -> None:
    toml_file.set_value("tools.max_calls", 2)
    talk = Talk(ADD, ADD, ANSWERED)

    talk.ask()

    assert [bool(request.tools) for request in talk.engine.asked] == [
        True,
        True,
        False,
    ]
    assert talk.path[-1][1] == ANSWERED


def test_a_model_that_only_calls_is_stopped() -> None:
    toml_file.set_value("tools.max_calls", 2)
    talk = Talk(ADD)

    talk.ask()

    assert len(talk.tools.ran) == 2
    (notice,) = talk.session.take_notices()
    assert notice.code == "too-many-calls"
    assert not talk.session.is_answering


def test_of_many_calls_in_one_answer_only_the_most_run() -> None:
    toml_file.set_value("tools.max_calls", 2)
    talk = Talk("\n".join([ADD] * 4), ANSWERED)

    talk.ask()

    assert len(talk.tools.ran) == 2
    assert talk.verdicts == ["once", "once", "wrong", "wrong"]


# --- stopping


def test_a_tool_that_never_answers_ends_when_the_answer_is_stopped() -> None:
    talk = Talk(write_call("fake_wait"), ANSWERED)

    def stop_when_running(state: CallState) -> None:
        if state.phase == "running":
            threading.Timer(0, talk.session.stop).start()

    talk.person.on_state = stop_when_running
    talk.ask()

    assert talk.verdicts == ["stopped"]
    assert talk.session.conversation.turns[-1].finish_reason == "cancelled"
    assert len(talk.engine.asked) == 1, "the model is not asked again"


def test_a_stop_while_it_is_asked_runs_nothing() -> None:
    talk = Talk("\n".join([ADD, ADD]), ANSWERED)

    def stop_when_asking(state: CallState) -> None:
        if state.phase == "asking":
            talk.session.stop()

    talk.person.on_state = stop_when_asking
    talk.ask()

    assert talk.tools.ran == []
    assert talk.verdicts == ["stopped", "stopped"]
    assert len(talk.person.asked) == 1


def test_a_call_that_is_cut_while_it_is_written_does_not_run() -> None:
    begun = [*answer(pieces(ADD[:52]))[:-1], Gate(), *answer([])[-1:]]
    talk = Talk(begun)

    def stop_when_written(state: CallState) -> None:
        if state.phase == "writing":
            talk.session.stop()

    talk.person.on_state = stop_when_written
    talk.ask()

    assert talk.tools.ran == []
    assert talk.person.phases == ["writing", "stopped"]
    (turn,) = talk.session.conversation.turns
    assert turn.calls == () and turn.finish_reason == "cancelled"


def test_a_complete_call_runs_also_if_the_limit_of_tokens_comes_behind_it() -> None:
    chatter = f"I add. {ADD} Now I wait, and wait, and"
    talk = Talk(answer(pieces(chatter), reason="length"), ANSWERED)

    talk.ask()

    assert talk.tools.ran == [("add", {"a": 1, "b": 2})]
    assert talk.path[1] == ("", ANSWERED, ["3"])
    assert "<tool_call>" not in talk.path[0][1]


def test_of_two_calls_of_which_one_is_cut_the_other_runs() -> None:
    cut = answer(pieces(ADD + ADD[:-20]), reason="length")
    talk = Talk(cut, ANSWERED)

    talk.ask()

    assert talk.tools.ran == [("add", {"a": 1, "b": 2})]
    ends = [state.phase for state in talk.person.states if state.phase != "writing"]
    assert ends == ["stopped", "asking", "running", "done"]
    assert len(talk.session.conversation.turns[0].calls) == 1


@pytest.mark.parametrize("reason", ["cancelled", "context", "error"])
def test_a_complete_call_of_an_answer_that_was_ended_does_not_run(reason: Any) -> None:
    talk = Talk(answer(pieces(f"{ADD} Now"), reason=reason))

    talk.ask()

    assert talk.tools.ran == []
    assert talk.session.conversation.turns[0].calls == ()


def test_after_a_stop_the_next_question_is_answered() -> None:
    talk = Talk(ADD, ANSWERED)

    def stop_when_asking(state: CallState) -> None:
        if state.phase == "asking":
            talk.session.stop()

    talk.person.on_state = stop_when_asking
    talk.ask()
    talk.person.on_state = lambda _: None
    talk.ask("Again?")

    assert talk.path[-1] == ("Again?", ANSWERED, [])


def test_a_retried_answer_after_calls_can_be_gone_back_to() -> None:
    talk = Talk("Hello.", ADD, ADD, "It is 3.", "It is three.")
    talk.ask("Hi")
    talk.ask()
    talk.session.regenerate()
    talk.hear()

    result = run_command(talk.session, "2.3 1")
    assert result.message == "Branch 1 of turn 2.3: 2 turns."
    assert talk.path[-1][1] == "It is 3."
    run_command(talk.session, "2.3 2")
    assert talk.path[-1][1] == "It is three."
    assert talk.tools.ran == [("add", {"a": 1, "b": 2})] * 2, "nothing ran again"


@pytest.mark.parametrize(
    "argument", ["1.3 1", "1.2 2", "1.0 1", "1.x 1", "2.1 1", "1.2"]
)
def test_a_step_that_is_none_or_has_no_question_is_refused(argument: str) -> None:
    talk = Talk(ADD, ANSWERED)
    talk.ask()
    before = talk.path

    with pytest.raises(UsageError):
        run_command(talk.session, argument)

    assert talk.path == before


# --- figures


def test_the_figures_are_those_of_all_steps_of_the_question() -> None:
    talk = Talk("Hello.", ADD, ADD, ANSWERED)
    talk.ask("Hi")
    talk.ask()

    steps = talk.session.conversation.turns[1:]
    n_tokens = sum(len(turn.tokens) for turn in steps)
    n_rounds = sum(len(turn.rounds) for turn in steps)
    assert len(steps) == 3
    assert talk.session.stats.figures.totals.tokens == n_tokens
    view = view_speculation(talk.session.stats)
    assert (view.n_tokens, view.n_steps) == (n_tokens, n_rounds)
    totals = talk.session.answer.joined_totals
    assert totals["tokens"] == n_tokens
    assert totals["speculation"]["drafted"] == view.drafted
    assert totals["timings"]["first_token_ms"] == 41.0


def test_a_retried_step_has_the_figures_of_the_steps_before_it() -> None:
    talk = Talk(ADD, ANSWERED, "It is three.")
    talk.ask()

    talk.session.regenerate()
    talk.hear()

    steps = talk.session.conversation.turns
    n_tokens = sum(len(turn.tokens) for turn in steps)
    assert steps[-1].visible_answer(None) == "It is three."
    assert talk.session.stats.figures.totals.tokens == n_tokens


def test_a_chat_that_is_opened_again_has_the_figures_of_all_steps(
    history: ChatHistory,
) -> None:
    talk = Talk(ADD, ANSWERED, history=history)
    talk.ask()
    before = view_speculation(talk.session.stats)

    talk.session.branch_changed()

    assert view_speculation(talk.session.stats) == before


def test_an_answer_that_is_stopped_while_a_tool_runs_has_the_figures_so_far() -> None:
    talk = Talk(write_call("fake_wait"))

    def stop_when_running(state: CallState) -> None:
        if state.phase == "running":
            talk.session.stop()

    talk.person.on_state = stop_when_running
    talk.ask()

    view = view_speculation(talk.session.stats)
    assert view.state == "done"
    assert view.n_tokens == len(talk.session.conversation.turns[0].tokens)
    totals = talk.session.answer.joined_totals
    lines = [plain_text(line) for line in format_stats(view, totals, seed=1)]
    assert f"acceptance rate {view.shown_rate}" in "\n".join(lines)


def test_slow_motion_of_a_later_step_begins_with_the_steps_before_it() -> None:
    talk = Talk(ADD, ANSWERED)
    talk.ask()

    played = talk.session.stats.copy_for_playback()

    n_first = len(talk.session.conversation.turns[0].tokens)
    assert played.figures.totals.tokens == n_first


# --- the chat afterwards


def test_undo_removes_a_question_with_its_steps() -> None:
    talk = Talk("Hello.", ADD, ADD, ANSWERED)
    talk.ask("Hi")
    talk.ask()

    undone = talk.session.undo()

    assert undone.question == "What is 1 + 2?"
    assert talk.path == [("Hi", "Hello.", [])]
    talk.session.switch_branch(undone.id)
    assert len(talk.path) == 4, "redoing it brings all steps back"


def test_another_answer_is_made_of_the_same_results_and_runs_nothing() -> None:
    talk = Talk(ADD, ANSWERED, "It is three.")
    talk.ask()

    talk.session.regenerate()
    talk.hear()

    assert len(talk.tools.ran) == 1
    assert talk.path[-1] == ("", "It is three.", ["3"])
    assert len(talk.session.conversation.turns) == 2


def test_an_edited_question_begins_anew() -> None:
    talk = Talk(ADD, ANSWERED, "Five.")
    talk.ask()
    assert talk.session.last_question == "What is 1 + 2?"

    talk.session.edit_last("What is 2 + 3?")
    talk.hear()

    assert talk.path == [("What is 2 + 3?", "Five.", [])]
    assert len(talk.engine.asked[-1].messages) == 1


def test_going_back_to_a_step_goes_back_to_its_question() -> None:
    talk = Talk(ADD, ANSWERED)
    talk.ask()

    question = talk.session.return_to(talk.session.conversation.turns[-1].id)

    assert question == "What is 1 + 2?" and talk.path == []


def test_a_later_question_sends_calls_and_results_again() -> None:
    talk = Talk(ADD, ANSWERED, "Yes.")
    talk.ask()

    talk.ask("Sure?")

    roles = [message.role for message in talk.engine.asked[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_a_chat_with_calls_comes_back_as_it_was(history: ChatHistory) -> None:
    talk = Talk(f"So: {ADD}", ANSWERED, history=history)
    talk.ask()
    talk.session.close()

    saved = history.load_chat(history.find_last_id())

    assert saved.conversation.turns == talk.session.conversation.turns
    assert saved.list_entry.turn_count == 1
    again = ChatSession(PAIR, 1, history, saved)
    messages = again.conversation.messages()
    assert messages == talk.session.conversation.messages()


def test_a_question_is_saved_with_its_results_before_they_are_read(
    history: ChatHistory,
) -> None:
    talk = Talk(ADD, [EngineExit("signal SIGKILL")], history=history)

    with pytest.raises(LocalspecError):
        talk.ask()

    saved = history.load_chat(history.find_last_id()).conversation
    assert [result.text for result in saved.turns[-1].results] == ["3"]
    assert talk.session.is_interrupted


def test_a_call_that_was_asked_about_when_the_program_was_killed_is_asked_again(
    history: ChatHistory,
) -> None:
    class KilledError(BaseException):
        """Ends the program while a person is asked."""

    def kill(state: CallState) -> None:
        if state.phase == "asking":
            raise KilledError

    talk = Talk(ADD, history=history)
    talk.person.on_state = kill
    with pytest.raises(KilledError):
        talk.ask()
    talk.session.close()

    saved = history.load_chat(history.find_last_id())
    again = Talk(ADD, ANSWERED, history=history)
    again.session = ChatSession(PAIR, 1, history, saved)
    again.session.toolbox = Toolbox([again.tools])
    again.session.attach_engine(again.engine)
    assert again.session.is_interrupted
    again.session.regenerate()
    again.hear()

    assert again.path == [("What is 1 + 2?", "", []), ("", ANSWERED, ["3"])]
    assert talk.tools.ran == [] and len(again.tools.ran) == 1
    seeds = [talk.engine.asked[0], again.engine.asked[0]]
    assert seeds[0].sampling.seed == seeds[1].sampling.seed


def test_an_answer_that_fails_after_a_call_keeps_the_results() -> None:
    talk = Talk(ADD, [EngineError("No numbers.")])

    with pytest.raises(EngineError):
        talk.ask()

    assert talk.path == [("What is 1 + 2?", "", []), ("", "", ["3"])]
    assert talk.session.withdrawn_question is None


def count_with_tools(count: CountCommand) -> CountResult:
    """A prompt has 10 tokens, and 400 more with tools."""
    return CountResult(410 if count.tools else 10)


def count_tools(talk: Talk) -> None:
    """Asks what the tools cost, as a front end does."""
    tools = talk.session.find_uncounted_tools()
    if tools:
        n_tokens = talk.session.count_tools(talk.engine, tools)
        talk.session.tool_costs[tools] = n_tokens


def test_what_is_left_of_the_context_is_without_the_tools() -> None:
    talk = Talk(ANSWERED)
    session = talk.session
    talk.engine.count = count_with_tools  # type: ignore[method-assign]
    empty = session.tokens_left
    assert empty is not None and session.toolbox is not None

    count_tools(talk)

    assert session.tokens_left == empty - 400
    session.toolbox.set_enabled("fake", enabled=False)
    count_tools(talk)
    assert session.tokens_left == empty


def test_tools_that_the_last_prompt_had_are_not_counted_again() -> None:
    talk = Talk(ANSWERED)
    session = talk.session
    talk.engine.count = count_with_tools  # type: ignore[method-assign]
    count_tools(talk)
    assert session.loaded is not None and session.toolbox is not None

    talk.ask()

    left = session.loaded.n_ctx - session.stats.context_tokens
    assert session.tokens_left == left
    session.toolbox.set_enabled("fake", enabled=False)
    count_tools(talk)
    assert session.tokens_left == left + 400
    session.start_new_chat()
    count_tools(talk)
    assert session.tokens_left == session.loaded.n_ctx - 400


def test_a_prompt_that_is_too_long_says_what_the_tools_take() -> None:
    talk = Talk([PromptTooLongError("The prompt is too long.")])
    talk.engine.count = count_with_tools  # type: ignore[method-assign]

    with pytest.raises(PromptTooLongError) as caught:
        talk.ask()

    assert "The tools take 400 tokens of these." in caught.value.hint


def test_a_first_prompt_that_is_too_long_is_withdrawn_as_ever() -> None:
    talk = Talk([PromptTooLongError("The prompt is too long.")])

    with pytest.raises(PromptTooLongError) as caught:
        talk.ask()

    assert "/tools" in caught.value.hint
    assert talk.path == [] and talk.session.withdrawn_question == "What is 1 + 2?"


# --- results


def test_a_picture_of_a_result_is_one_of_the_chat(history: ChatHistory) -> None:
    picture = ResultPicture("image/png", PHOTO)
    talk = Talk(write_call("fake_draw"), ANSWERED, history=history)
    talk.tools.offer("draw", returning("[image/png]", picture))

    talk.ask()

    (kept,) = talk.session.conversation.turns[-1].results[0].pictures
    assert kept.name == "fake.draw-1"
    assert history.read_picture(kept.sha256) == PHOTO
    content = talk.engine.asked[1].messages[-1].content
    assert content == "[image: fake.draw-1, not seen by this model]\n[image/png]"


def test_a_model_that_sees_gets_the_picture_of_a_result() -> None:
    picture = ResultPicture("image/png", PHOTO)
    talk = Talk(write_call("fake_draw"), ANSWERED)
    talk.tools.offer("draw", returning("[image/png]", picture))
    assert talk.session.loaded is not None
    talk.session.loaded = replace(talk.session.loaded, sees=True)

    talk.ask()

    message = talk.engine.asked[1].messages[-1]
    assert message.content == "[image/png]"
    (seen,) = message.images
    assert Path(seen.path).read_bytes() == PHOTO


def test_a_damaged_picture_of_a_result_is_left_out_with_a_notice() -> None:
    picture = ResultPicture("image/png", b"no picture")
    talk = Talk(write_call("fake_draw"), ANSWERED)
    talk.tools.offer("draw", returning("[image/png]", picture))

    talk.ask()

    assert talk.session.conversation.turns[-1].results[0].pictures == ()
    (notice,) = talk.session.take_notices()
    assert notice.code == "picture-left-out"


def count_characters(count: CountCommand) -> CountResult:
    """Four are a token, and a message has ten more."""
    sizes = [10 + len(message.content) // 4 for message in count.messages]
    return CountResult(sum(sizes))


def test_a_long_result_is_cut_to_what_fits_and_says_so() -> None:
    talk = Talk(write_call("fake_long"), ANSWERED)
    talk.tools.offer("long", returning("word " * 20_000))
    talk.engine.count = count_characters  # type: ignore[method-assign]

    talk.ask()

    (result,) = talk.session.conversation.turns[-1].results
    assert 6_000 < len(result.text) < 16_384, "half of 8,192 tokens and less"
    assert result.text.endswith("context. Ask for a smaller part.]")


def test_a_part_of_a_file_that_is_cut_says_where_to_read_on(tmp_path: Path) -> None:
    lines = "\n".join(f"line {n} " + "x" * 90 for n in range(1, 2_001))
    (tmp_path / "long.txt").write_text(lines)
    call = write_call("folder_read", path="long.txt", lines=2_000)
    talk = Talk(call, ANSWERED)
    assert talk.session.toolbox is not None
    talk.session.toolbox.add(FolderTools(tmp_path))
    talk.engine.count = count_characters  # type: ignore[method-assign]

    talk.ask()

    (result,) = talk.session.conversation.turns[-1].results
    *_, last, note = result.text.splitlines()
    number = int(last.split()[1])
    assert note == f"[Read on with line={number + 1}, and fewer lines.]"


# --- without a session


def test_calls_can_be_run_without_a_session() -> None:
    person = Person()
    call = ToolCall("1", "fake_add", '{"a": 4, "b": 5}')
    runner = CallRunner(
        toolbox=Toolbox([make_tools()]),
        approvals=Approvals(),
        front_end=person,
        stop=threading.Event(),
    )

    (result,) = runner.run([call], n_most=1)

    assert (result.text, result.tool, result.verdict) == ("9", "fake.add", "once")
    assert person.phases == ["asking", "running", "done"]


def test_tools_of_a_server_that_was_turned_off_are_not_offered() -> None:
    talk = Talk(ANSWERED)
    assert talk.session.toolbox is not None
    talk.session.toolbox.add(FakeTools("empty"))
    talk.session.toolbox.set_enabled("fake", enabled=False)

    talk.ask()

    assert talk.engine.asked[0].tools == ""


def test_a_long_call_is_shown_more_seldom_as_it_grows() -> None:
    """Each time it is read from its beginning, which a person cannot follow anyway."""
    talk = Talk(write_call("fake_add", a=1, b=2, note="x" * 30_000), ANSWERED)

    talk.ask()

    n_tokens = len(talk.session.conversation.turns[0].tokens)
    shown = [state for state in talk.person.states if state.phase == "writing"]
    assert n_tokens > 10_000
    assert 50 < len(shown) < 500
    assert "x" * 30_000 in shown[-1].request.arguments_text


def test_of_very_many_calls_the_first_hundred_are_whole() -> None:
    reader = AnswerCallReader("generic")

    for n in range(150):
        reader.feed(AnswerPart(False, write_call("fake_add", a=n)))
    reader.finish(is_cut=False)

    calls = reader.make_calls(1)
    assert len({call.id for call in calls}) == 100
    assert [json.loads(call.arguments) for call in calls] == [
        {"a": n} for n in range(100)
    ]
