"""Tools with a model whose template has none: the calls that it writes are exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolCallParser
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    CountCommand,
    GenerateCommand,
    SamplingParams,
    ToolCall,
)
from tests.support import tinygguf
from tests.support.sessions import GREEDY, Said, folded, loaded
from tests.support.zoo import CHAT_CONTROLS, CHAT_TEMPLATE, THINKER_TEMPLATE

ROOMY = ContextSettings(flash_attn="on", n_ctx=2048, n_ubatch=64, n_threads=1)
HI = ChatMessage("user", "Hi?")
SPECS = ("off", "lookup", "model", "auto")
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
}
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "It says how a city's weather is.",
                "parameters": CITY,
            },
        }
    ]
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
MISTAKES = {
    "at once": ("I", "▁look.", "<tool", "_call", ">", "weather", "(Rome)"),
    "in one token": ("I", "▁look.", "<tool_call>", "weather", "(Rome)"),
    "in the name": ("I", "▁look.", "<tool_call>", '\n{"name":', '▁"other"', "}"),
    "the answer ends": ("I", "▁look.", "<tool_call>"),
}


def ask(session: Session, **more: Any) -> Said:
    given: dict[str, Any] = {"messages": (HI,), "sampling": GREEDY, "max_tokens": 90}
    return folded(session.generate(GenerateCommand(**given | more)))


def parrot(path: Path, words: tuple[str, ...], template: str = CHAT_TEMPLATE) -> Path:
    model = tinygguf.parrot(words, n_ctx=4096, controls=CHAT_CONTROLS)
    return replace(model, template=template).write(path)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_call_is_exact_whatever_the_model_would_write(
    mistake: str, tmp_path: Path
) -> None:
    path = parrot(tmp_path / "made.gguf", MISTAKES[mistake])
    with loaded(path, path, ROOMY) as session:
        assert session.ready.settings["chat"]["tools"] == "generic"
        plain = ask(session, spec="off", tools=TOOLS)
        assert plain.text.startswith(f"I look.{CALL}")
        for spec in SPECS:
            assert ask(session, spec=spec, tools=TOOLS).text == plain.text


def test_a_token_that_holds_a_wrong_call_does_not_come(tmp_path: Path) -> None:
    words = ("I", "▁look.", "<tool", "_call>weather", "(Rome)")
    path = parrot(tmp_path / "made.gguf", words)
    with loaded(path, path, ROOMY) as session:
        assert "<tool_call>weather" in ask(session).text
        plain = ask(session, spec="off", tools=TOOLS)
        assert plain.text.startswith("I look.<tool")
        assert "<tool_call>weather" not in plain.text
        for spec in SPECS:
            assert ask(session, spec=spec, tools=TOOLS).text == plain.text


def test_a_sampled_call_is_the_same_with_every_draft(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", MISTAKES["at once"])
    sampling = SamplingParams(temperature=1.5, seed=7)
    with loaded(path, path, ROOMY) as session:
        texts = {
            ask(session, spec=spec, tools=TOOLS, sampling=sampling).text
            for spec in SPECS
        }
    assert len(texts) == 1


def test_text_without_a_mark_is_free(tmp_path: Path) -> None:
    words = ("I", "▁look", "▁<tool", "_calls>", "▁at", "▁it.")
    path = parrot(tmp_path / "made.gguf", words)
    with loaded(path, path, ROOMY) as session:
        for spec in SPECS:
            said = ask(session, spec=spec, tools=TOOLS)
            assert (said.text, said.reason) == ("I look <tool_calls> at it.", "eog")


def test_only_tools_that_may_be_called_are_called(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", MISTAKES["at once"])
    other = {"type": "function", "function": {"name": "clock"}}
    both = json.dumps([*json.loads(TOOLS), other])
    with loaded(path, settings=ROOMY) as session:
        said = ask(session, tools=both, callable_tools=("clock",))
    assert said.text.startswith('I look.<tool_call>\n{"name": "clock", "arguments": {')


def test_a_mark_in_the_thinking_begins_no_call(tmp_path: Path) -> None:
    words = ("<think>", "A", "<tool_call>", "▁is", "▁one.", "</think>", "▁Yes.")
    path = parrot(tmp_path / "made.gguf", words, THINKER_TEMPLATE)
    with loaded(path, path, ROOMY) as session:
        for spec in SPECS:
            said = ask(session, spec=spec, tools=TOOLS)
            assert "A<tool_call> is one." in said.text
            assert said.reason == "eog"


def test_a_built_in_template_has_tools_too(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", MISTAKES["at once"], template="")
    with loaded(path, settings=ROOMY) as session:
        said = ask(session, tools=TOOLS, template="alpaca")
        assert said.text.startswith(f"I look.{CALL}")


def test_a_begun_call_is_resumed(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", MISTAKES["at once"])
    with loaded(path, settings=ROOMY) as session:
        whole = ask(session, tools=TOOLS)
        for cut in range(1, len(whole.ids), 3):
            begun = tuple(whole.ids[:cut])
            rest = ask(session, tools=TOOLS, resumed_tokens=begun)
            assert [*begun, *rest.ids] == whole.ids


def test_calls_and_results_of_a_chat_are_in_the_prompt(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", ("ok",))
    calls = (
        ToolCall("1", "weather", '{"city": "Rome"}'),
        ToolCall("2", "clock", "no JSON"),
    )
    chat = (
        ChatMessage("system", "Be kind."),
        HI,
        ChatMessage("assistant", "I look.", tool_calls=calls),
        ChatMessage("tool", "late", tool_call_id="2"),
        ChatMessage("tool", "sunny", tool_call_id="1"),
        ChatMessage("user", "Thanks."),
    )
    with loaded(path, settings=ROOMY) as session:
        builder = session._pair.prompt_builder
        text = builder.render(CountCommand(messages=chat, tools=TOOLS)).text
        unoffered = builder.render(CountCommand(messages=chat)).text
    system, _, rest = text.partition("<|im_end|>")
    assert "Be kind." in system
    assert '"name": "weather"' in system
    assert "how a city's weather is" in system
    assert '"enum": ["Rome"]' in system
    assert rest == (
        "\n<|im_start|>user\nHi?<|im_end|>\n"
        f"<|im_start|>assistant\nI look.\n{CALL}\n<tool_call>\n"
        '{"name": "clock", "arguments": "no JSON"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nlate\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert unoffered.endswith(rest), "without tools, the history stays"


def test_a_call_is_read_back_from_the_prompt(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", ("ok",))
    call = ToolCall("1", "weather", '{"city": "a \\"b\\" </tool_call> é\\n"}')
    chat = (HI, ChatMessage("assistant", "", tool_calls=(call,)))
    with loaded(path, settings=ROOMY) as session:
        builder = session._pair.prompt_builder
        text = builder.render(CountCommand(messages=chat)).text
    answer = text.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    parser = ToolCallParser("generic", {"weather": CITY})
    name, *arguments = [*parser.feed(answer), *parser.finish()]
    assert isinstance(name, ToolCallDelta)
    assert name.name == "weather"
    written = "".join(
        delta.arguments for delta in arguments if isinstance(delta, ToolCallDelta)
    )
    assert json.loads(written) == json.loads(call.arguments)
