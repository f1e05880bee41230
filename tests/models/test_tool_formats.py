"""Every format of the table is read back, whatever is in the arguments, however it is cut."""

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.models.chat_template.thinking_tags import ThinkingTags
from localspec.models.chat_template.tool_calls import (
    ToolCallDelta,
    ToolCallParser,
    ToolDelta,
    force_call,
)
from localspec.models.chat_template.tool_detection import detect_format
from localspec.models.chat_template.tool_formats import TOOL_FORMATS
from localspec.spec.thinking_budget import ThinkingBudget

FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "opts": {"type": "object"},
    "tags": {"type": "array"},
    "ok": {"type": "boolean"},
}
TOOLS = {"get_weather": {"type": "object", "properties": PROPERTIES}, "now": {}}
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"city": "Rome"},
    {"city": "Rome", "days": 3},
    {"city": 'a "quoted" \\ back\nline'},
    {"city": "</tool_call>"},
    {"city": "12"},
    {"city": "x", "opts": {"a": [1, 2, {"b": "c"}]}, "tags": ["u", "v"], "ok": True},
    {"city": ""},
    {"city": "日本 é 😀"},
    {"city": "  lead\n\n"},
    {"city": "x < y && z > w"},
    {"city": "it's"},
)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def write_invoke(prefix: str, section: str, arguments: dict[str, Any]) -> str:
    values = "".join(
        f'<{prefix}parameter name="{key}">{as_text(value)}</{prefix}parameter>\n'
        for key, value in arguments.items()
    )
    return (
        f'<{section}>\n<{prefix}invoke name="get_weather">\n{values}'
        f"</{prefix}invoke>\n</{section}>"
    )


def write_dsml(arguments: dict[str, Any]) -> str:
    values = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{as_text(value)}</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    return (
        f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n{values}'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )


def write_kimi3(arguments: dict[str, Any]) -> str:
    kinds = {
        str: "string",
        int: "number",
        bool: "boolean",
        dict: "object",
        list: "array",
    }
    values = "".join(
        f'<|open|>argument key="{key}" type="{kinds[type(value)]}"<|sep|>'
        f"{as_text(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return (
        f'<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>{values}'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )


def write_nested(value: Any) -> str:
    mark = "]<]minimax[>["
    if isinstance(value, dict):
        parts = (
            f"{mark}<{key}>{write_nested(v)}{mark}</{key}>" for key, v in value.items()
        )
        return "".join(parts)
    if isinstance(value, list):
        return "".join(f"{mark}<item>{write_nested(v)}{mark}</item>" for v in value)
    return as_text(value)


def write_minimax3(arguments: dict[str, Any]) -> str:
    mark = "]<]minimax[>["
    return (
        f'{mark}<tool_call>\n{mark}<invoke name="get_weather">{write_nested(arguments)}'
        f"{mark}</invoke>\n{mark}</tool_call>"
    )


def write_gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{write_gemma(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else as_json(value)


def write_python(arguments: dict[str, Any]) -> str:
    """As LFM2.5's template does, which escapes nothing in a text."""
    values: list[str] = []
    for key, value in arguments.items():
        literal = f"'{value}'" if isinstance(value, str) else repr(value)
        values.append(f"{key}={literal}")
    return f"<|tool_call_start|>[get_weather({', '.join(values)})]<|tool_call_end|>"


def write_tags(arguments: dict[str, Any], call: str, *, line_feed: str = "") -> str:
    values = "".join(
        f"<parameter={key}>{line_feed}{as_text(value)}{line_feed}</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<{call}>\n<function=get_weather>\n{values}</function>\n</{call}>"


def write_hunyuan(arguments: dict[str, Any]) -> str:
    values = "".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n"
        f"<arg_value:opensource>{as_text(value)}</arg_value:opensource>\n"
        for key, value in arguments.items()
    )
    return (
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        f"{values}</tool_call:opensource>\n</tool_calls:opensource>"
    )


def write_minicpm(arguments: dict[str, Any]) -> str:
    values = "".join(
        f'<param name="{key}"><![CDATA[{as_text(value)}]]></param>'
        for key, value in arguments.items()
    )
    return f'<function name="get_weather">{values}</function>'


def write(format_name: str, arguments: dict[str, Any]) -> str:
    """A call as a model of the format writes it."""
    given = as_json(arguments)
    call = f'{{"name": "get_weather", "arguments": {given}}}'
    plain = {
        "mistral": f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{given}",
        "gpt-oss": f"<|channel|>commentary to=functions.get_weather<|message|>{given}<|call|>",
        "gemma": f"<|tool_call>call:get_weather{write_gemma(arguments)}<tool_call|>",
        "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{given}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{given}<|tool_call_end|><|tool_calls_section_end|>",
        "generic": f"<tool_call>\n{call}\n</tool_call>",
        "functionary": f"<function=get_weather>{given}</function>",
        "solar": "<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{given}<|tool_call:end|><|calls|>",
        "tool_calls": f"<tool_calls>[{call}]</tool_calls>",
        "nemotron": f"<TOOLCALL>[{call}]</TOOLCALL>",
        "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        f'"parameters": {given}}}\n]<|END_ACTION|>',
        "apertus": f'<|tools_prefix|>[{{"get_weather": {given}}}]<|tools_suffix|>',
        "firefunction": f"functools[{call}]",
        "gigachat": f"<|function_call|>{call}",
        "llama3": call.replace('"arguments"', '"parameters"', 1),
    }
    written = {
        "tags": lambda: write_tags(arguments, "tool_call", line_feed="\n"),
        "seed": lambda: write_tags(arguments, "seed:tool_call"),
        "python": lambda: write_python(arguments),
        "dsml": lambda: write_dsml(arguments),
        "kimi3": lambda: write_kimi3(arguments),
        "minimax": lambda: write_invoke("", "minimax:tool_call", arguments),
        "minimax3": lambda: write_minimax3(arguments),
        "hunyuan": lambda: write_hunyuan(arguments),
        "minicpm": lambda: write_minicpm(arguments),
    }
    return plain[format_name] if format_name in plain else written[format_name]()


def read(format_name: str, pieces: Iterator[str] | list[str]) -> tuple[str, list[Any]]:
    """The text, and the name and arguments of each call."""
    parser = ToolCallParser(format_name, TOOLS)
    deltas: list[ToolDelta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    text = ""
    calls: list[list[str]] = []
    for delta in [*deltas, *parser.finish(is_cut=False)]:
        if not isinstance(delta, ToolCallDelta):
            text += delta
            continue
        if delta.name:
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    return text, [(name, json.loads(given)) for name, given in calls]


def cuts(text: str) -> Iterator[list[str]]:
    """Ways to cut a text: not at all, at each character, and by chance."""
    yield [text]
    yield list(text)
    dice = random.Random(50)
    for _ in range(5):
        at = sorted(dice.choices(range(len(text) + 1), k=6))
        borders = zip([0, *at], [*at, len(text)], strict=True)
        yield [text[start:end] for start, end in borders]


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_each_format_is_read_back(format_name: str) -> None:
    for arguments in ARGUMENTS:
        text = write(format_name, arguments)
        for pieces in cuts(text):
            assert read(format_name, pieces) == ("", [("get_weather", arguments)])


@pytest.mark.parametrize(
    "format_name", [name for name in TOOL_FORMATS if name != "llama3"]
)
def test_text_before_a_call_and_a_second_call_are_kept(format_name: str) -> None:
    text = (
        f"I look. {write(format_name, {'days': 1})}\n{write(format_name, {'days': 2})}"
    )
    calls = [("get_weather", {"days": 1}), ("get_weather", {"days": 2})]
    for pieces in cuts(text):
        assert read(format_name, pieces) == ("I look.", calls)


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_a_call_of_a_tool_that_is_not_offered_loses_no_letter(format_name: str) -> None:
    text = write(format_name, {"city": "Rome"}).replace("get_weather", "other")
    for pieces in cuts(text):
        said, calls = read(format_name, pieces)
        assert calls == []
        assert said == text


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_a_thinking_budget_ends_in_no_call(format_name: str) -> None:
    """Each character is a token, and every budget up to the end of the call is tried."""
    before = "" if format_name == "llama3" else "I look. "
    call = write(format_name, {"city": "日本", "tags": ["u", "v"]})
    text = f"{before}{call} So?"
    marks = "|".join(map(re.escape, TOOL_FORMATS[format_name].closers))
    may_follow = re.compile(rf"(?:\s|{marks or ' '})*")
    for limit in range(1, len(text)):
        budget = ThinkingBudget(
            ThinkingTags("<think>", "</think>"),
            is_open=True,
            limit=limit,
            piece=lambda token: text[token].encode(),
            closing_tokens=[-1],
            calls=ToolCallParser(format_name, {}),
        )

        n_read = budget.consume_tokens(range(len(text)))

        assert budget.take_closing_tokens() == [-1]
        assert limit <= n_read
        if limit <= len(before):
            assert n_read <= len(before), limit
        elif n_read < len(before) + len(call):
            assert may_follow.fullmatch(call[n_read - len(before) :]), text[:n_read]
        else:
            # What follows the call shows that no other closer does.
            assert n_read <= max(limit, len(before) + len(call) + 2)


def test_a_call_without_an_end_is_cut_at_last() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "' + "a" * 9_000
    budget = ThinkingBudget(
        ThinkingTags("<think>", "</think>"),
        is_open=True,
        limit=40,
        piece=lambda token: text[token].encode(),
        closing_tokens=[-1],
        calls=ToolCallParser("tags", {}),
    )

    n_read = budget.consume_tokens(range(len(text)))

    assert n_read < len(text) / 2
    assert budget.take_closing_tokens() == [-1]


@pytest.mark.timeout(75)
@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_marks_again_and_again_take_linear_time(format_name: str) -> None:
    """With the square of the length it would be minutes."""
    form = TOOL_FORMATS[format_name]
    for mark in (*form.marks, *form.closers, " ", "{", "}", "["):
        text = mark * (15_000 // len(mark))
        assert read(format_name, [text])[0] in (text, "")
        call = write(format_name, {"city": text})
        read(format_name, [call[:-3]])
        read(format_name, list(call))


def least_value(schema: dict[str, Any]) -> Any:
    """The first value that a schema of `force_call` allows."""
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return least_value(schema["anyOf"][-1])
    if schema.get("type") == "array":
        return [least_value(schema["items"])]
    parts = schema.get("properties", {})
    return {name: least_value(parts[name]) for name in schema.get("required", ())}


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_a_forced_call_of_one_of_several_tools_is_read_back(format_name: str) -> None:
    if format_name == "gpt-oss":  # Its headers name one tool.
        with pytest.raises(UsageError, match="one of several"):
            force_call(format_name, TOOLS)
        return
    forced = force_call(format_name, TOOLS)
    written = json.dumps(least_value(json.loads(forced.schema)))
    for pieces in cuts(forced.prefix + written):
        assert read(format_name, pieces) == ("", [("now", {})])


@pytest.mark.parametrize(
    "format_name", [name for name in TOOL_FORMATS if name != "gpt-oss"]
)
def test_a_forced_call_of_one_tool_is_read_back(format_name: str) -> None:
    schema = TOOLS["get_weather"] | {"required": ["city"]}
    schema["properties"] = {"city": {"const": "</function>"}}
    forced = force_call(format_name, {"get_weather": schema})
    written = json.dumps(least_value(json.loads(forced.schema)))
    for pieces in cuts(forced.prefix + written):
        expected = [("get_weather", {"city": "</function>"})]
        assert read(format_name, pieces) == ("", expected)


def test_a_type_that_is_glued_to_a_name_of_harmony_is_none() -> None:
    text = '<|channel|>commentary to=functions.get_weatherjson<|message|>{"days": 1}'
    assert read("gpt-oss", [text]) == ("", [("get_weather", {"days": 1})])


SMALL_TEMPLATE = """{{ tools | tojson if tools }}{% for m in messages %}
<|{{ m.role }}|>{{ m.content }}
{%- for call in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            '<tool_call>{"name": "{{ call.function.name }}", "arguments": '
            "{{ call.function.arguments | tojson }}}</tool_call>",
            "tags",
        ),
        (
            "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}",
            "mistral",
        ),
        ("<tool_call> is a tag: {{ call.function.name }}", None),
        ("", None),
    ],
)
def test_the_format_is_the_one_that_reads_what_the_template_writes(
    call: str, expected: str | None
) -> None:
    assert detect_format(SMALL_TEMPLATE.replace("CALL", call), {}) == expected


def test_a_template_that_shows_no_tools_has_no_format() -> None:
    call = (
        '<tool_call>{"name": "{{ call.function.name }}", "arguments": {}}</tool_call>'
    )
    source = SMALL_TEMPLATE.replace("{{ tools | tojson if tools }}", "").replace(
        "CALL", call
    )
    assert detect_format(source, {}) is None


UNKNOWN = {
    # Templates of llama.cpp's folder that show no tools, write no calls, or whose calls
    # are in no format of the table.
    *("HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "muse-glimmer"),
    *("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "google-gemma-2-2b-it"),
    *("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1"),
    *("ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world"),
    "meetkai-functionary-medium-v3.2",
    *("CohereForAI-c4ai-command-r-plus-tool_use", "microsoft-Phi-3.5-mini-instruct"),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_CHECKOUT is not set")
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem
)
def test_the_formats_of_llama_cpps_templates(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    found = detect_format(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert (found is None) == (path.stem in UNKNOWN)
