"""An answer with tools that belongs to no chat session, step by step."""

import threading
from collections.abc import Callable

from localspec.chat.conversation import CallResult
from localspec.chat.settings import LoadedModel
from localspec.chat.tool_steps import ToolSteps
from localspec.protocol.events import Notice
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    CountResult,
    GenerateCommand,
    ToolCall,
)
from localspec.tools.approval import Approvals, CallDecision
from localspec.tools.tool_types import ToolResult, make_result
from localspec.tools.toolbox import Toolbox
from tests.support.fake_tools import FakeTools, Person, make_tools, write_call
from tests.support.scripted_engine import Script, ScriptedEngine, answer, pieces

ADD = write_call("fake_add", a=1, b=2)
QUESTION = GenerateCommand(messages=(ChatMessage("user", "How much is 1 + 2?"),))


def say(text: str) -> Callable[[], Script]:
    return lambda: answer(pieces(text))


class CountingEngine(ScriptedEngine):
    """Five characters are a token."""

    def count(self, count: CountCommand) -> CountResult:
        n_characters = sum(len(message.content) for message in count.messages)
        return CountResult(n_characters // 5)


class Asker:
    """Asks a scripted engine until an answer has no more calls."""

    def __init__(
        self,
        *texts: str,
        tools: FakeTools | None = None,
        person: Person | None = None,
        max_calls: int = 16,
    ) -> None:
        self.engine = ScriptedEngine(*map(say, texts))
        self.tools = tools or make_tools()
        self.person = person or Person()
        self.notices: list[Notice] = []
        self.stop = threading.Event()
        self.steps = ToolSteps(
            Toolbox([self.tools]),
            Approvals(reads_saved=False),
            self.person,
            max_calls=max_calls,
            notify=self.notices.append,
        )
        self.said = ""

    def ask(self) -> str:
        """What is said in all steps."""
        loaded = LoadedModel.from_ready(self.engine.ready)
        has_more = True
        while has_more:
            request = QUESTION
            if self.steps.tools:
                request = GenerateCommand(
                    messages=QUESTION.messages, tools=self.steps.tools
                )
            generated = self.steps.begin_answer(len(request.messages), loaded)
            request = self.steps.add_messages(self.engine, request, loaded)
            for event in self.engine.generate(request):
                parts = generated.add(event).parts
                self.said += "".join(part.text for part in parts)
            has_more = self.steps.run_calls(generated, self.stop)
        return self.said

    @property
    def calls(self) -> list[tuple[ToolCall, CallResult]]:
        return self.steps.calls

    @property
    def results(self) -> list[str]:
        return [result.text for _, result in self.steps.calls]


def test_an_answer_without_calls_is_one_step() -> None:
    asker = Asker("Three.")
    assert asker.ask() == "Three."
    assert asker.calls == []
    assert len(asker.engine.asked) == 1


def test_results_are_messages_of_the_next_step() -> None:
    asker = Asker(f"I add.{ADD}", "It is 3.")
    assert asker.ask() == "I add.It is 3."
    first, second = asker.engine.asked
    assert first.messages == QUESTION.messages
    question, called, result = second.messages
    assert question == QUESTION.messages[0]
    assert (called.role, called.content) == ("assistant", "I add.")
    assert called.tool_calls[0].name == "fake_add"
    assert called.tokens
    assert (result.role, result.content) == ("tool", "3")
    assert result.tool_call_id == called.tool_calls[0].id


def test_a_complete_call_runs_also_if_the_limit_of_tokens_comes_behind_it() -> None:
    asker = Asker("It is 3.")
    loaded = LoadedModel.from_ready(asker.engine.ready)
    cut = asker.steps.begin_answer(1, loaded)
    for event in answer(pieces(f"{ADD} So I {ADD[:-20]}"), reason="length"):
        cut.add(event)
    assert asker.steps.run_calls(cut, asker.stop)
    assert asker.results == ["3"]


def test_a_call_is_shown_while_it_is_written() -> None:
    asker = Asker(ADD)
    loaded = LoadedModel.from_ready(asker.engine.ready)
    begun = asker.steps.begin_answer(1, loaded)
    for event in answer(pieces(ADD)):
        begun.add(event)
        asker.steps.show_progress(begun)
    assert asker.person.phases == ["writing"]
    arguments = [state.request.arguments_text for state in asker.person.states]
    assert arguments[-1] == '{"a": 1, "b": 2}'
    assert len(arguments[0]) < len(arguments[-1])


def test_a_call_that_is_cut_is_shown_as_stopped() -> None:
    asker = Asker(ADD)
    loaded = LoadedModel.from_ready(asker.engine.ready)
    begun = asker.steps.begin_answer(1, loaded)
    for event in answer(pieces(ADD[:-20]), reason="length"):
        begun.add(event)
        asker.steps.show_progress(begun)
    assert asker.person.phases == ["writing", "stopped"]


def test_five_steps_have_all_results_in_order() -> None:
    adds = [write_call("fake_add", a=n, b=n) for n in range(5)]
    asker = Asker(*adds, "Done.")
    assert asker.ask() == "Done."
    assert asker.results == ["0", "2", "4", "6", "8"]
    ids = [call.id for call, _ in asker.calls]
    assert len(set(ids)) == 5
    roles = [message.role for message in asker.engine.asked[-1].messages]
    assert roles == ["user", *["assistant", "tool"] * 5]


def test_what_an_answer_adds_to_a_chat_ends_with_what_is_said() -> None:
    asker = Asker(ADD, "It is 3.")
    asker.ask()
    last = asker.engine.asked[-1]
    loaded = LoadedModel.from_ready(asker.engine.ready)
    final = asker.steps.begin_answer(1, loaded)
    for event in answer(["It is 3."]):
        final.add(event)
    messages = asker.steps.all_messages(final.turn)
    assert messages[:-1] == last.messages[1:]
    assert (messages[-1].role, messages[-1].content) == ("assistant", "It is 3.")


def test_a_refusal_is_the_result_of_its_call() -> None:
    person = Person(CallDecision("no", "I do it myself."))
    asker = Asker(ADD, "Well.", person=person)
    assert asker.ask() == "Well."
    assert asker.tools.ran == []
    assert "I do it myself." in asker.results[0]


def test_after_the_most_calls_the_model_is_offered_none() -> None:
    asker = Asker(f"{ADD}{ADD}{ADD}", "It is 3.", max_calls=2)
    assert asker.ask() == "It is 3."
    assert len(asker.tools.ran) == 2
    assert asker.results[:2] == ["3", "3"]
    assert "too many calls" in asker.results[2]
    assert asker.engine.asked[0].tools
    assert asker.engine.asked[1].tools == ""


def test_a_model_that_calls_on_without_being_offered_tools_has_answered() -> None:
    asker = Asker(ADD, f"Again.{ADD}", max_calls=1)
    assert asker.ask() == "Again."
    assert len(asker.engine.asked) == 2
    assert len(asker.calls) == 1


def test_a_call_that_is_stopped_ends_the_answer() -> None:
    asker = Asker(ADD, "It is 3.", person=Person(CallDecision("stopped")))
    assert asker.ask() == ""
    assert asker.steps.is_stopped
    assert len(asker.engine.asked) == 1


def test_a_long_result_is_cut_to_what_fits() -> None:
    tools = FakeTools()
    tools.offer("read", lambda _, __: make_result("word " * 30_000))
    asker = Asker(write_call("fake_read"), "Read.", tools=tools)
    asker.engine = CountingEngine(say(write_call("fake_read")), say("Read."))
    assert asker.ask() == "Read."
    result = asker.engine.asked[-1].messages[-1].content
    assert len(result) < 8192 * 5
    assert "do not fit into the context" in result


def test_a_server_that_fails_is_a_notice_and_an_error_result() -> None:
    tools = FakeTools()
    tools.offer(
        "die", lambda _, __: ToolResult("It died.", is_error=True, failure="It died.")
    )
    asker = Asker(write_call("fake_die"), "Sorry.", tools=tools)
    assert asker.ask() == "Sorry."
    assert [notice.code for notice in asker.notices] == ["tool-server"]
