"""The calls that templates show are read back from a stream, however it is cut."""

import json
import random
import re
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, tool_calls
from localspec.models.chat_template.argument_types import ArgumentTypes
from localspec.models.chat_template.thinking_tags import AnswerPart, HarmonyParser
from localspec.protocol.wire import ChatMessage, ToolCall
from tests.support.long_cases import bulk

STRING = {"type": "string"}
PROPERTIES = {
    "s": STRING, "n": {"type": "integer"}, "o": {"anyOf": [STRING, {"type": "null"}]},
    "r": {"$ref": "#/$defs/text"}, "e": {"enum": ["a", "12"]}, "b": {"type": ["boolean", "null"]},
    "l": {"type": "array"},
}  # fmt: skip
PARAMETERS: dict[str, Any] = {
    "f": {"type": "object", "properties": PROPERTIES, "$defs": {"text": STRING}},
    "g": True,
    "h": {"properties": None},
}


def read(
    form: str, pieces: list[str], *, is_cut: bool = True
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the name and arguments of each call."""
    if form == "gpt-oss":  # as in an answer, whose channels are read before
        channels = HarmonyParser()
        parts: list[AnswerPart] = []
        for piece in pieces:
            parts += channels.feed(piece)
        parts += channels.flush()
        pieces = [part.text for part in parts]
    parser = tool_calls.ToolCallParser(form, PARAMETERS)
    deltas: list[tool_calls.ToolDelta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    deltas += parser.finish(is_cut=is_cut)
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if isinstance(delta, tool_calls.ToolCallDelta):
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


SHORT = {
    "<C>": "<tool_call>",
    "</C>": "</tool_call>",
    "<F=": "<function=",
    "</F>": "</function>",
}
SHORT |= {
    "<P=": "<parameter=",
    "</P>": "</parameter>",
    "<M>": "<|message|>",
    "<CH>": "<|channel|>",
}
SHORT |= {
    "<K>": "<arg_key>",
    "</K>": "</arg_key>",
    "<V>": "<arg_value>",
    "</V>": "</arg_value>",
}
NESTED = '{"a": "x}\\"{", "b": [1, {"c": 2}]}'
ANSWERS: tuple[tuple[str, str, str], ...] = (
    # An answer, and what is read of it: its text, and for each call → its name and
    # arguments. The usual forms are in `write_call`.
    (
        "tags",
        f'Look.\n<C>\n{{"name": "f", "arguments": {NESTED}}}\n</C>',
        f"Look.→f{NESTED}",
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, '
        '{"name": "g", "arguments": {"z": []}}]',
        '→f{"a": 1}→g{"z": []}',
    ),
    (
        "mistral",
        'Yes. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
        'Yes.→f{"a": 1}→g{}',
    ),
    ("gpt-oss", "<CH>final<M>Hi", "Hi"),
    ("tags", "1 < 2 and 3 <tool\n\n", "1 < 2 and 3 <tool\n\n"),
    ("tags", "a <C> is <b>", "a <tool_call> is <b>"),
    ("tags", '<C>\n{"nam}', '<tool_call>\n{"nam}'),  # broken JSON
    (  # types by the schema
        "tags",
        "<C>\n<F=f>\n<P=o>\n12\n</P>\n<P=r>\n{}\n</P>\n<P=e>\n12\n</P>\n<P=b>\nTrue\n</P>"
        "\n<P=l>\n[1]\n</P>\n<P=n>\nmany\n</P>\n</F>\n</C>",
        '→f{"o": "12", "r": "{}", "e": "12", "b": true, "l": [1], "n": "many"}',
    ),
    # a closing tag is missing
    (
        "tags",
        "<C>\n<F=f>\n<P=s>\nRome\n<P=n>\n3\n</F>\n</C>",
        '→f{"s": "Rome", "n": 3}',
    ),
    ("tags", "<F=x>\n</F>", "<function=x>\n</function>"),  # a tool that is not offered
    (
        "tags",
        '<C>{"name": "f", "arguments": {"s": "Ro\nme\\q"}}</C>',
        '→f{"s": "Ro\\nme\\\\q"}',
    ),
    (
        "llama3",
        '{"name": "John", "n": 3}',
        '{"name": "John", "n": 3}',
    ),  # an answer in JSON
    # a bracket too many, also without an end, and one of the text
    ("tags", '<C>\n{"name": "f", "arguments": {"n": 1}}}\n</C> {x}', ' {x}→f{"n": 1}'),
    ("tags", '<C>{"name": "g", "arguments": {}}} x', "} x→g{}"),
    (
        "llama3",
        '{"name": "f", "parameters": {"n":1}}; {"name": "h", "parameters": {}}',
        '→f{"n":1}→h{}',
    ),
    ("mistral", '[TOOL_CALLS]f{"n": 1}', '→f{"n": 1}'),  # without a marker
    (  # after a preamble
        "gpt-oss",
        "<CH>commentary<M>Let me.<|end|><|start|>assistant<CH>commentary "
        'to=functions.f <|constrain|>json<M>{"n":1}<|call|>',
        'Let me.→f{"n":1}',
    ),
    (
        "tags",
        '<C>\n{"name": "f", "arguments": {"a": "un',
        '→f{"a": "un',
    ),  # cut by the limit
)


def test_calls_are_found_however_the_stream_is_cut() -> None:
    for form, short, expected in ANSWERS:
        text = re.sub(
            "|".join(map(re.escape, SHORT)), lambda found: SHORT[found[0]], short
        )
        for pieces in (
            [text],
            list(text),
            *(cut(text, random.Random(n)) for n in range(20)),
        ):
            said, calls = read(form, pieces)
            assert (
                said + "".join(f"→{name}{given}" for name, given in calls) == expected
            ), text


PARTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=s>",
    ),
    *(
        "</parameter>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
    ),
    *(
        "[ARGS]",
        "<|channel|>",
        "<|message|>",
        "<|start|>assistant",
        "<|end|>",
        "<|python_tag|>",
    ),
    *(
        '{"name": "f", ',
        '"arguments": {',
        '"x": ',
        "to=functions.",
        "f",
        "h",
        "{",
        "}",
        "[",
        "]",
    ),
    *(
        ",",
        ";",
        '"',
        "\\",
        "\\u",
        "\\ud800",
        "\\udc00",
        "\ud800",
        " ",
        "\n",
        "1",
        "NaN",
        "é",
    ),
)
FORMATS: tuple[str, ...] = ("tags", "llama3", "mistral", "gpt-oss")


@settings(derandomize=True, max_examples=600)
@given(st.lists(st.sampled_from(PARTS), max_size=14), st.integers(0, 1000))
def test_any_text_is_read_the_same_however_it_is_cut(
    parts: list[str], seed: int
) -> None:
    """Arguments are valid JSON, and no character is lost."""
    text = "".join(parts)
    for form in FORMATS:
        whole = read(form, [text], is_cut=False)
        assert read(form, cut(text, random.Random(seed)), is_cut=False) == whole
        assert read(form, list(text), is_cut=False) == whole
        for name, arguments in whole[1]:
            assert name in PARAMETERS
            assert isinstance(json.loads(arguments), dict)
            arguments.encode()
        assert whole[1] or whole[0] == text or form == "gpt-oss"


Style = Literal["hermes", "qwen coder", "glm", "llama", "list", "names", "gpt-oss"]
STYLES: dict[Style, str] = {
    "hermes": "tags", "qwen coder": "tags", "glm": "tags", "llama": "llama3", "list": "mistral",
    "names": "mistral", "gpt-oss": "gpt-oss",
}  # fmt: skip
WORDS = (
    "a",
    "Ro\nme",
    "{}",
    "[1]",
    "12",
    "null",
    "</tool",
    "<b>",
    "é",
    "\\n",
    '"',
    "漢",
    "\u2028",
)
TAGS = (
    "</function>",
    "</parameter> x",
    "<parameter=",
    "</tool_call>",
    "</arg_value> y",
)


def random_call(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Arguments that the schemas of `PARAMETERS` allow."""
    word = "".join(dice.choices((*WORDS, dice.choice(TAGS)), k=dice.randint(1, 4)))
    values: dict[str, Any] = {
        "s": word, "n": dice.randint(-(10**12), 10**12), "o": f"x{word}", "r": word,
        "e": dice.choice(("a", "12")), "b": dice.choice((True, False, None)),
        "l": [word, {"k": [1.5, None]}],
    }  # fmt: skip
    names = dice.sample(list(values), dice.randint(1, 4))
    return "f", {name: values[name] for name in names}


def write_call(
    style: Style, name: str, arguments: dict[str, Any], dice: random.Random
) -> str:
    """As models write it, some with a mistake that does not change what is meant."""
    plain: dict[str, str] = {}
    for key, value in arguments.items():
        plain[key] = value if isinstance(value, str) else json.dumps(value)
    if style == "qwen coder":
        values = "".join(
            f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in plain.items()
        )
        begin = dice.choice(("<tool_call>\n", ""))
        return f"{begin}<function={name}>\n{values}</function>\n</tool_call>"
    if style == "glm":
        parts = (
            f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"
            for k, v in plain.items()
        )
        return f"<tool_call>{name}\n{''.join(parts)}</tool_call>"
    written = json.dumps(arguments, ensure_ascii=dice.random() < 0.5)
    if dice.random() < 0.3:
        written = re.sub(r"(?<!\\)((?:\\\\)*)\\n", "\\1\n", written)  # raw line feeds
    extra = dice.choice(("", "", "}", " }"))
    if style == "gpt-oss":
        return f"<|channel|>commentary to=functions.{name} json<|message|>{written}{extra}<|call|>"
    if style == "names":
        return f"[TOOL_CALLS]{name}[ARGS]{written}{extra}"
    key = "parameters" if style == "llama" else "arguments"
    whole = f'{{"name": "{name}", "{key}": {written}}}'
    if dice.random() < 0.2:
        whole = f'{{"{key}": {written}, "name": "{name}"}}'
    if style == "list":
        return f"[TOOL_CALLS][{whole}]"
    return (
        whole + extra
        if style == "llama"
        else f"<tool_call>\n{whole}{extra}\n</tool_call>"
    )


def test_calls_that_models_write_are_what_they_mean() -> None:
    dice = random.Random(39)
    n = bulk(300, 5000)
    n_read = 0
    for i in range(n):
        style = dice.choice(list(STYLES))
        name, arguments = random_call(dice)
        text = write_call(style, name, arguments, dice)
        if dice.random() < 0.2:  # cut anywhere: a call in part, or text
            text = text[: dice.randrange(len(text))]
            read(STYLES[style], cut(text, dice))
            continue
        said, calls = read(STYLES[style], cut(text, dice), is_cut=False)
        if calls:
            n_read += 1
            assert [(name, json.loads(given)) for name, given in calls] == [
                (name, arguments)
            ], text
            assert not said.strip(), (i, text)
        else:
            assert said == text, (i, text)
    assert n_read > n // 2
    print(
        f"{n} texts of {len(STYLES)} kinds: {n_read} calls as meant, the others cut or text"
    )


def test_deep_arguments_raise_nothing() -> None:
    deep = "[" * 3000 + "]" * 3000
    streamed = f'<tool_call>{{"name": "f", "arguments": {{"l": {deep}}}}}</tool_call>'
    assert read("tags", list(streamed)) == ("", [("f", f'{{"l": {deep}}}')])
    late = f'<tool_call>{{"arguments": {{"l": {deep}}}, "name": "f"}}</tool_call>'
    assert read("tags", [late]) == (late, [])


def read_argument(schema: dict[str, Any], value: str) -> Any:
    """What becomes of an argument that a model writes between tags."""
    parser = tool_calls.ToolCallParser("tags", {"f": schema})
    call = (
        f"<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    )
    _, arguments = parser.feed(call)
    assert isinstance(arguments, tool_calls.ToolCallDelta)
    return json.loads(arguments.arguments)["a"]


@pytest.mark.timeout(
    30
)  # Each way through the schema would take longer than the universe is old.
def test_alternatives_that_are_the_schema_itself_are_read_once() -> None:
    itself = {"$ref": "#/properties/a"}
    for alternatives, value in (
        ([itself] * 24, 1),  # Nothing says which type it has.
        ([itself] * 24 + [{"type": "integer"}], 1),
        ([itself] * 24 + [STRING], "1"),
    ):
        schema = {"properties": {"a": {"anyOf": alternatives}}}
        assert read_argument(schema, "1") == value


@pytest.mark.timeout(30)
def test_a_definition_that_many_references_name_is_read_once() -> None:
    definitions: dict[str, Any] = {"d100": STRING}
    for i in range(100):
        definitions[f"d{i}"] = {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 24}
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    assert read_argument(schema, "1") == "1"


def test_a_schema_that_is_too_long_to_read_allows_any_type() -> None:
    parts = [{"type": "string"} for _ in range(15_000)]
    assert read_argument({"properties": {"a": {"anyOf": parts}}}, "1") == 1
    assert read_argument({"properties": {"a": {"enum": ["1"] * 30_000}}}, "1") == 1
    assert read_argument({"properties": {"a": {"type": ["string"] * 30_000}}}, "1") == 1
    assert (
        read_argument({"properties": {"a": {"$ref": "#/" + "a/" * 30_000}}}, "1") == 1
    )


def test_all_arguments_of_an_answer_share_one_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_read = 0
    read_part = ArgumentTypes._read_part

    def count(self: ArgumentTypes, schema: Any) -> tuple[set[str], list[Any]]:
        nonlocal n_read
        n_read += 1
        return read_part(self, schema)

    monkeypatch.setattr(ArgumentTypes, "_read_part", count)
    names = [f"a{i}" for i in range(300)]
    any_of_200 = {"anyOf": [{"const": f"{i}"} for i in range(200)]}
    tools = {
        f"f{i}": {"properties": dict.fromkeys(names, any_of_200)} for i in range(2)
    }
    values = "".join(f"<parameter={name}>\n1\n</parameter>\n" for name in names)
    calls = [f"<function={name}>\n{values}</function>\n</tool_call>" for name in tools]
    parser = tool_calls.ToolCallParser("tags", tools)
    deltas: list[tool_calls.ToolDelta] = []
    for call in calls * 10:
        deltas += parser.begin_another().feed(call)
    assert len(deltas) == 40  # A name and arguments for each call.
    assert n_read < 30_000  # Read for each call, it would be 1.2 million.


CALL_END = "</parameter></function></tool_call>"
N_CHARS = 300_000
LONG_ANSWERS: tuple[tuple[str, str, str, str], ...] = (
    # The beginning of an answer, what it repeats, and its end.
    ("tags", "<function=f>", "<parameter=s>x", CALL_END),
    ("tags", "<function=f><parameter=s>", " ", CALL_END),
    ("tags", "<function=f><parameter=s>", "</parameter>x", CALL_END),
    ("tags", "<function=f>", "<function=f>x", f"<parameter=s>{CALL_END}"),
    ("tags", "", "<function=f>x", ""),
    ("tags", "", "<function=f>x</function>y", ""),
    ("tags", "", "<function=f><parameter=s>x</parameter></function>y", ""),
    ("tags", "<function=f>", '<tool_call>{"a": 1}', ""),
    (
        "tags",
        "<tool_call>f<arg_key>s</arg_key><arg_value>",
        "</arg_value><arg_key>",
        "</tool_call>",
    ),
    (
        "tags",
        "<tool_call>f<arg_key>s</arg_key><arg_value>",
        "<arg_key>",
        "</arg_value></tool_call>",
    ),
    ("tags", "<tool_call>f", "<arg_key>k</arg_key>", "</arg_value></tool_call>"),
    ("mistral", "[TOOL_CALLS]f", " ", ""),
    ("mistral", "[TOOL_CALLS]", " ", ""),
)


@pytest.mark.timeout(60)  # With the square of the length it would be minutes.
@pytest.mark.parametrize("answer", LONG_ANSWERS, ids=[text[2] for text in LONG_ANSWERS])
def test_the_time_for_an_answer_grows_with_its_length_only(
    answer: tuple[str, str, str, str],
) -> None:
    form, begin, repeated, end = answer
    text = begin + repeated * (N_CHARS // len(repeated)) + end
    said, calls = read(form, [text])
    assert calls or said == text


def test_calls_are_found_to_the_end_of_an_answer_that_begins_with_a_broken_one() -> (
    None
):
    broken = "<tool_call>\n<function=f>\n<parameter=s>\n" + "x" * 200_000
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    said, calls = read("tags", [broken, call, call])
    assert said == broken
    assert calls == [("f", "{}")] * 2


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
        ChatMessage(
            "assistant", "", tool_calls=(ToolCall("call_1", "f", '{"a": [1]}'),)
        ),
        ChatMessage("tool", "done", tool_call_id="call_1"),
    ]
    rendered = jinja_render.render(TEMPLATE, messages, {}, tools=TOOLS)
    assert rendered.template == "own"
    assert rendered.text.startswith(TOOLS)
    text, calls = read(
        "tags", [rendered.text.partition("<assistant>")[2].partition("<tool>")[0]]
    )
    assert calls == [("f", '{"a": [1]}')]
    assert len(text) == 9 and text.isalnum()  # the id, as Mistral's templates demand
    assert rendered.text.endswith(f"<tool>done{text}")


@pytest.mark.parametrize("form", FORMATS)
def test_a_forced_call_is_read_back(form: str) -> None:
    forced = tool_calls.force_call(form, {"f": {"type": "object"}})
    assert json.loads(forced.schema)
    call = '{"name": "f", "arguments": {}}'
    rest = {
        "llama3": call.replace("arguments", "parameters"),
        "mistral": f"[{call}]",
        "gpt-oss": "{}",
    }
    text = rest.get(form, call)
    assert read(form, [forced.prefix, text]) == ("", [("f", "{}")])


def test_a_call_of_one_of_two_tools_cannot_be_forced_in_harmony() -> None:
    """The name of the tool is in the header, before the grammar begins."""
    with pytest.raises(UsageError):
        tool_calls.force_call("gpt-oss", {"f": {}, "g": {}})
