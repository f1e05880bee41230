"""`LLM.chat(tools=…)` against a real engine, whose model calls `weather`."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM, FolderTools, errors
from localspec.tools.approval import CallRequest
from tests.api.conftest import Load
from tests.support.run_command import ROOT
from tests.support.zoo import CALL_TEXT, RESULT_TEXT, Zoo

QUESTION = "How is the weather?"
SAID = f"I look.\n\n{RESULT_TEXT}"


@pytest.fixture
def agent(load: Load) -> LLM:
    return load("agent", ctx=2048)


def make_weather(work: Callable[[], object] = lambda: None) -> Callable[[str], str]:
    def weather(city: str) -> str:
        """The weather of a city."""
        work()
        return f"18 degrees in {city}"

    return weather


def test_a_function_is_called_and_its_result_is_answered(agent: LLM) -> None:
    threads: list[str] = []

    def note_thread() -> None:
        threads.append(threading.current_thread().name)

    answer = agent.chat(QUESTION, tools=[make_weather(note_thread)], temperature=0)

    assert answer.said == SAID
    assert answer.text == CALL_TEXT + RESULT_TEXT
    (call,) = answer.calls
    assert (call.name, call.arguments) == ("weather", {"city": "Rome"})
    assert (call.result, call.is_error) == ("18 degrees in Rome", False)
    assert call.has_run
    assert threads == [threading.current_thread().name]


def test_the_numbers_are_those_of_all_steps(agent: LLM) -> None:
    answer = agent.chat(QUESTION, tools=[make_weather()], temperature=0)
    first = agent.chat(
        QUESTION, tools=[make_weather()], on_call=lambda _: False, temperature=0
    )
    written = "".join(token.text for token in answer.tokens)
    assert written == CALL_TEXT + RESULT_TEXT
    assert answer.finish_reason == "eog"
    assert answer.timings["decode_ms"] > 0
    counts = answer.speculation
    n_passes = counts["rounds"] + counts["paused_rounds"]
    assert n_passes <= len(answer.tokens)
    assert len(answer.tokens) <= n_passes + counts["drafted"]
    assert answer.reused_tokens > 0
    assert answer.document()["calls"] == [
        {
            "name": "weather",
            "arguments": {"city": "Rome"},
            "result": "18 degrees in Rome",
            "is_error": False,
            "verdict": "named",
        }
    ]
    assert first.calls[0].verdict == "no"


def test_the_pieces_of_a_stream_are_what_is_said(agent: LLM) -> None:
    stream = agent.chat(QUESTION, stream=True, tools=[make_weather()], temperature=0)
    with stream:
        pieces = list(stream)
    assert "".join(map(str, pieces)) == f"I look.{RESULT_TEXT}"
    assert "<tool_call>" in "".join(each.token.text for each in pieces if each.token)
    assert stream.answer.said == SAID


def test_a_call_is_asked_about_and_refused_with_a_reason(agent: LLM) -> None:
    asked: list[CallRequest] = []
    ran: list[None] = []

    def refuse(request: CallRequest) -> str:
        asked.append(request)
        return "Rome is closed."

    answer = agent.chat(
        QUESTION,
        tools=[make_weather(lambda: ran.append(None))],
        on_call=refuse,
        temperature=0,
    )
    assert [request.full_name for request in asked] == ["weather"]
    assert ran == []
    (call,) = answer.calls
    assert "Rome is closed." in call.result
    assert not call.has_run


def test_a_wrong_answer_of_on_call_runs_nothing(agent: LLM) -> None:
    ran: list[None] = []
    with pytest.raises(TypeError, match="on_call must return"):
        agent.chat(
            QUESTION,
            tools=[make_weather(lambda: ran.append(None))],
            on_call=lambda _: None,  # type: ignore[arg-type,return-value]
            temperature=0,
        )
    assert ran == []


def test_an_exception_of_a_function_is_what_the_model_is_told(agent: LLM) -> None:
    def fail() -> None:
        raise ValueError("no network")

    answer = agent.chat(QUESTION, tools=[make_weather(fail)], temperature=0)
    (call,) = answer.calls
    assert (call.result, call.is_error) == ("ValueError: no network", True)
    assert answer.said == SAID


def test_an_interrupt_in_a_function_ends_the_answer_and_not_the_engine(
    agent: LLM,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent.chat(QUESTION, tools=[make_weather(interrupt)], temperature=0)
    assert agent.chat(QUESTION, tools=[make_weather()], temperature=0).said == SAID


def test_a_stop_while_a_function_runs_ends_the_answer_after_it(agent: LLM) -> None:
    answer = agent.chat(QUESTION, tools=[make_weather(agent.stop)], temperature=0)
    assert answer.finish_reason == "cancelled"
    assert answer.said == "I look."
    assert len(answer.calls) == 1


def test_a_chat_goes_on_with_what_the_answer_adds_to_it(agent: LLM) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = agent.chat(messages, tools=[make_weather()], temperature=0)
    assert [message.role for message in first.messages] == [
        "assistant",
        "tool",
        "assistant",
    ]
    messages += [*first.messages, {"role": "user", "content": "And in Oslo?"}]
    second = agent.chat(messages, tools=[make_weather()], temperature=0)
    assert second.said == SAID
    ids = [message.tool_call_id for message in (*first.messages, *second.messages)]
    assert len(set(filter(None, ids))) == 2


def test_an_answer_without_tools_is_a_message_too(agent: LLM) -> None:
    answer = agent.chat("Hi?", temperature=0, max_tokens=2)
    (message,) = answer.messages
    assert (message.role, message.content) == ("assistant", answer.text)
    assert answer.calls == ()


def test_after_the_most_calls_no_tools_are_offered(agent: LLM) -> None:
    answer = agent.chat(QUESTION, tools=[make_weather()], max_calls=1, temperature=0)
    assert len(answer.calls) == 1
    assert (
        answer.prompt_tokens
        < agent.chat(QUESTION, tools=[make_weather()], temperature=0).prompt_tokens
    )


def test_a_coroutine_answers_with_tools(agent: LLM) -> None:
    async def ask() -> str:
        answer = await agent.achat(QUESTION, tools=[make_weather()], temperature=0)
        return answer.said

    assert asyncio.run(asyncio.wait_for(ask(), 120)) == SAID


def test_both_streams_take_tools(agent: LLM) -> None:
    async def read() -> str:
        stream = agent.astream(QUESTION, tools=[make_weather()], temperature=0)
        return "".join([str(piece) async for piece in stream])

    pieces = agent.stream(QUESTION, tools=[make_weather()], temperature=0)
    said = "".join(map(str, pieces))
    assert said == f"I look.{RESULT_TEXT}"
    assert asyncio.run(asyncio.wait_for(read(), 120)) == said


def test_a_folder_is_read_by_a_model_that_asks_for_it(
    load: Load, tmp_path: Path
) -> None:
    (tmp_path / "tea").write_text("Green is best.", encoding="utf-8")
    llm = load("reader", ctx=2048)
    answer = llm.chat("Which tea?", tools=[FolderTools(tmp_path)], temperature=0)
    (call,) = answer.calls
    assert (call.name, call.result) == ("folder.read", "Green is best.")


def no_tool(city: str) -> str:
    return city


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": ["no-such-server"]}, "There is no server 'no-such-server'"),
        ({"tools": "weather"}, "tools cannot be 'weather'"),
        ({"tools": [no_tool, no_tool]}, "Two tools are called no_tool"),
        ({"tools": [7]}, "A tool cannot be 7"),
        ({"tools": [no_tool], "json_schema": {}}, "Tools cannot be used with"),
        ({"tools": [no_tool], "raw": True}, "raw=True leaves no tools"),
    ],
)
def test_what_cannot_be_offered_is_refused(
    options: dict[str, Any], problem: str, agent: LLM
) -> None:
    with pytest.raises(errors.LocalspecError, match=problem):
        agent.chat(QUESTION, **options)


def test_the_example_of_the_documentation_runs(
    zoo: Zoo, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a model that calls `weather`, in place of one that has to be downloaded."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"## Tools.*?```python skip\n(.*?)```", text, re.DOTALL)
    model = str(zoo["agent"])
    source = example.replace('LLM("qwen3-8b")', f"LLM({model!r}, seed=1, ctx=2048)")
    assert source != example
    exec(compile(source, "docs/api.md", "exec"), {"LLM": LLM})
    shown = capsys.readouterr().out
    assert shown.endswith("weather {'city': 'Rome'} 18 °C in Rome\n")


def test_a_model_without_a_template_calls_nothing(load: Load) -> None:
    with pytest.raises(errors.UsageError, match="has no chat template"):
        load("parrot").chat("Hi?", tools=[no_tool])
