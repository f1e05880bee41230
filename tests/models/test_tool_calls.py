"""Tool calls: what templates show of them is read back from a stream, however it is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render
from localspec.models.chat_template.tool_calls import (
    ToolCallDelta,
    ToolCallParser,
    ToolFormat,
    detect_format,
    force_call,
)
from localspec.protocol.wire import ChatMessage, ToolCall

STRING = {"type": "string"}
PROPERTIES = {
    "s": STRING,
    "n": {"type": "integer"},
    "o": {"anyOf": [STRING, {"type": "null"}]},
    "r": {"$ref": "#/$defs/text"},
    "e": {"enum": ["a", "12"]},
    "b": {"type": ["boolean", "null"]},
    "l": {"type": "array"},
}
PARAMETERS: dict[str, Any] = {
    "f": {"type": "object", "properties": PROPERTIES, "$defs": {"text": STRING}},
    "g": True,
    "h": {"properties": None},
}


def read(
    form: ToolFormat, pieces: list[str], *, is_cut: bool = True
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the name and arguments of each call."""
    parser = ToolCallParser(form, PARAMETERS)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    deltas += parser.finish(is_cut=is_cut)
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            name, arguments = calls.get(delta.index, ("", ""))
            assert not (arguments and delta.name), "the name comes first"
            calls[delta.index] = (name + delta.name, arguments + delta.arguments)
    text = "".join(delta for delta in deltas if isinstance(delta, str))
    return text, [calls[index] for index in range(len(calls))]


def cut(text: str, rng: random.Random) -> list[str]:
    pieces = []
    while text:
        n = rng.randint(1, 9)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


NESTED = '{"a": "x}\\"{", "b": [1, {"c": 2}]}'
ANSWERS: dict[str, tuple[ToolFormat, str, str, list[tuple[str, str]]]] = {
    "hermes": (
        "tags",
        f'Let me see.\n<tool_call>\n{{"name": "f", "arguments": {NESTED}}}\n</tool_call>',
        "Let me see.",
        [("f", NESTED)],
    ),
    "arguments first": (
        "tags",
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
    ),
    "qwen coder": (
        "tags",
        "<tool_call>\n<function=f>\n<parameter=s>\n12\nx\n</parameter>\n"
        "<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", '{"s": "12\\nx", "n": 12}')],
    ),
    "llama": ("llama3", '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "mistral's list": (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, '
        '{"name": "g", "arguments": {"z": []}}]',
        "",
        [("f", '{"a": 1}'), ("g", '{"z": []}')],
    ),
    "mistral's names": (
        "mistral",
        'Yes. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
        "Yes.",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "gpt-oss": (
        "gpt-oss",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        "",
        [("f", '{"a": 1}')],
    ),
    "gpt-oss, an answer": ("gpt-oss", "<|channel|>final<|message|>Hi", "Hi", []),
    "text": ("tags", "1 < 2 and 3 <tool\n\n", "1 < 2 and 3 <tool\n\n", []),
    "a tag that calls nothing": ("tags", "a <tool_call> is <b>", "a <tool_call> is <b>", []),
    "broken JSON": ("tags", '<tool_call>\n{"nam}', '<tool_call>\n{"nam}', []),
    "qwen coder without the tag": (
        "tags",
        "Hi.\n<function=f>\n<parameter=s>\n12\n</parameter>\n</function>\n</tool_call>",
        "Hi.",
        [("f", '{"s": "12"}')],
    ),
    "types by the schema": (
        "tags",
        "<tool_call>\n<function=f>"
        "\n<parameter=o>\n12\n</parameter>\n<parameter=r>\n{}\n</parameter>"
        "\n<parameter=e>\n12\n</parameter>\n<parameter=b>\nTrue\n</parameter>"
        "\n<parameter=l>\n[1]\n</parameter>\n<parameter=n>\nmany\n</parameter>"
        "\n</function>\n</tool_call>",
        "",
        [("f", '{"o": "12", "r": "{}", "e": "12", "b": true, "l": [1], "n": "many"}')],
    ),
    "a value with closing tags": (
        "tags",
        "<tool_call>\n<function=f>\n<parameter=s>\na </function> b </parameter> c </tool_call>\n"
        "</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", '{"s": "a </function> b </parameter> c </tool_call>", "n": 3}')],
    ),
    "a closing tag is missing": (
        "tags",
        "<tool_call>\n<function=f>\n<parameter=s>\nRome\n<parameter=n>\n3\n</function>\n</tool_call>",
        "",
        [("f", '{"s": "Rome", "n": 3}')],
    ),
    "glm's value with closing tags": (
        "tags",
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call> </arg_value> b</arg_value>"
        "</tool_call> ok",
        " ok",
        [("f", '{"s": "a</tool_call> </arg_value> b"}')],
    ),
    "a tool that is not offered": (
        "tags",
        "<function=x>\n</function>",
        "<function=x>\n</function>",
        [],
    ),
    "a raw line feed": (
        "tags",
        '<tool_call>{"name": "f", "arguments": {"s": "Ro\nme\\q"}}</tool_call>',
        "",
        [("f", '{"s": "Ro\\nme\\\\q"}')],
    ),
    "an answer in JSON": ("llama3", '{"name": "John", "n": 3}', '{"name": "John", "n": 3}', []),
    "llama's list": (
        "llama3",
        '{"name": "f", "parameters": {"n":1}}; {"name": "h", "parameters": {}}',
        "",
        [("f", '{"n":1}'), ("h", "{}")],
    ),
    "mistral without a marker": ("mistral", '[TOOL_CALLS]f{"n": 1}', "", [("f", '{"n": 1}')]),
    "gpt-oss, after a preamble": (
        "gpt-oss",
        "<|channel|>commentary<|message|>Let me.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"n":1}<|call|>',
        "Let me.",
        [("f", '{"n":1}')],
    ),
    "cut by the token limit": (
        "tags",
        '<tool_call>\n{"name": "f", "arguments": {"a": "un',
        "",
        [("f", '{"a": "un')],
    ),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_calls_are_found_however_the_stream_is_cut(
    answer: tuple[ToolFormat, str, str, list[tuple[str, str]]],
) -> None:
    form, text, expected, calls = answer
    for pieces in ([text], list(text), *(cut(text, random.Random(n)) for n in range(20))):
        assert read(form, pieces) == (expected, calls)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(0, 1000), st.booleans())
def test_any_arguments_come_through(arguments: Any, seed: int, is_ascii: bool) -> None:
    written = json.dumps(arguments, ensure_ascii=is_ascii)
    texts: dict[ToolFormat, str] = {
        "tags": f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>',
        "llama3": f'{{"name": "f", "parameters": {written}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{written}",
        "gpt-oss": f"<|channel|>commentary to=functions.f json<|message|>{written}<|call|>",
    }
    for form, text in texts.items():
        assert read(form, cut(text, random.Random(seed))) == ("", [("f", written)])


PARTS = (
    *("<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=s>"),
    *("</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]"),
    *("[ARGS]", "<|channel|>", "<|message|>", "<|start|>assistant", "<|end|>", "<|python_tag|>"),
    *('{"name": "f", ', '"arguments": {', '"x": ', "to=functions.", "f", "h", "{", "}", "[", "]"),
    *(",", ";", '"', "\\", "\\u", "\\ud800", "\\udc00", "\ud800", " ", "\n", "1", "NaN", "é"),
)
FORMATS: tuple[ToolFormat, ...] = ("tags", "llama3", "mistral", "gpt-oss")


@settings(deadline=None, derandomize=True, max_examples=600)
@given(st.lists(st.sampled_from(PARTS), max_size=14), st.integers(0, 1000))
def test_any_text_is_read_the_same_however_it_is_cut(parts: list[str], seed: int) -> None:
    """Arguments are valid JSON, and no character is lost."""
    text = "".join(parts)
    for form in FORMATS:
        whole = read(form, [text], is_cut=False)
        assert read(form, cut(text, random.Random(seed)), is_cut=False) == whole
        assert read(form, list(text), is_cut=False) == whole
        for name, arguments in whole[1]:
            assert name in PARAMETERS and isinstance(json.loads(arguments), dict)
            arguments.encode()
        assert whole[1] or whole[0] == text or form == "gpt-oss"


def test_deep_arguments_raise_nothing() -> None:
    deep = "[" * 3000 + "]" * 3000
    streamed = f'<tool_call>{{"name": "f", "arguments": {{"l": {deep}}}}}</tool_call>'
    assert read("tags", list(streamed)) == ("", [("f", f'{{"l": {deep}}}')])
    late = f'<tool_call>{{"arguments": {{"l": {deep}}}, "name": "f"}}</tool_call>'
    assert read("tags", [late]) == (late, [])


TEMPLATE = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{{- '<' + message.role + '>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}</tool_call>' + call.id }}
{%- endfor %}
{{- message.tool_call_id or '' }}
{%- endfor %}"""
TOOLS = '[{"type": "function", "function": {"name": "f"}}]'


def test_a_template_gets_tools_calls_and_results() -> None:
    messages = [
        ChatMessage("user", "Go"),
        ChatMessage("assistant", "", tool_calls=(ToolCall("call_1", "f", '{"a": [1]}'),)),
        ChatMessage("tool", "done", tool_call_id="call_1"),
    ]
    rendered = jinja_render.render(TEMPLATE, messages, {}, None, TOOLS)
    assert rendered.template == "own"
    assert rendered.text.startswith(TOOLS)
    text, calls = read("tags", [rendered.text.partition("<assistant>")[2].partition("<tool>")[0]])
    assert calls == [("f", '{"a": [1]}')]
    assert len(text) == 9 and text.isalnum()  # the id, as Mistral's templates demand
    assert rendered.text.endswith(f"<tool>done{text}")


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (TEMPLATE, "tags"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<|channel|>commentary", "gpt-oss"),
        ('{{ tools }}{"name": function name, "parameters": x}', "llama3"),
        ("{{ tools }}", None),
        ("<tool_call>", None),
    ],
)
def test_the_format_is_known_by_the_template(source: str, form: str | None) -> None:
    assert detect_format(source) == form


@pytest.mark.parametrize("form", FORMATS)
def test_a_forced_call_is_read_back(form: ToolFormat) -> None:
    forced = force_call(form, {"f": {"type": "object"}})
    assert json.loads(forced.schema)
    call = '{"name": "f", "arguments": {}}'
    rest = {"llama3": call.replace("arguments", "parameters"), "mistral": f"[{call}]"}
    text = rest.get(form, "{}" if form == "gpt-oss" else call)
    assert read(form, [forced.prefix, text]) == ("", [("f", "{}")])
    if form == "gpt-oss":
        with pytest.raises(UsageError):
            force_call(form, {"f": {}, "g": {}})
