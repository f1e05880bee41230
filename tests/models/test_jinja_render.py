"""Chat templates: what real ones use, roles they refuse, and those that do not work."""

import json
from collections.abc import Mapping, Sequence
from ctypes import create_string_buffer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.llama.library import C
from localspec.models.chat_template import (
    builtin_templates,
    jinja_render,
    thinking_tags,
)
from localspec.models.chat_template.jinja_render import RenderResult, render
from localspec.protocol.wire import ChatMessage, ToolCall

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = ChatMessage("system", "Be brief.")
HI = ChatMessage("user", "Hi")
HELLO = ChatMessage("assistant", "Hello")
MORE = ChatMessage("user", "More")
CHAT = (HI, HELLO, MORE)
BY_ROLE = "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ALTERNATING_AFTER_SYSTEM = (
    "{% set n = namespace(last='') %}{% for m in messages %}{% if m.role == n.last %}"
    "{{ raise_exception('must alternate') }}{% endif %}{% set n.last = m.role %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def text(source: str, *messages: ChatMessage, think: bool | None = None) -> str:
    """What a template that works makes of a chat."""
    rendered = render(source, messages or CHAT, TOKENS, think)
    assert rendered.template == "own"
    assert rendered.notices == ()
    return rendered.text


def codes(rendered: RenderResult) -> list[str]:
    return [notice.code for notice in rendered.notices]


OPENING = "{{ '<think>' if enable_thinking is not defined or enable_thinking else '' }}"
WHOLE = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}"
THINKING_TEMPLATES = {
    "on request": WHOLE + "{% if add_generation_prompt %}[assistant]" + OPENING + "{% endif %}",
    "always": WHOLE + "[assistant]" + OPENING,
    "in the last message": "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if loop.last %}[assistant]" + OPENING + "{% endif %}{% endfor %}",
    "history without it": "{% if add_generation_prompt %}{{ '<s>' }}{% endif %}"
    + WHOLE
    + "{% if add_generation_prompt %}[assistant]" + OPENING + "{% endif %}",
    "never": WHOLE + "[assistant]{# </think> #}",
}  # fmt: skip
WORDS = st.sampled_from(
    ["", "hi", "k", "in", "<", "think", "<think>", "</think>", "[assistant]"]
)


@settings(derandomize=True, max_examples=60)
@given(
    name=st.sampled_from(sorted(THINKING_TEMPLATES)), words=WORDS | st.text(max_size=9)
)
@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("think", [None, True, False])
def test_appended_whatever_is_asked(
    role: str, think: bool | None, name: str, words: str
) -> None:
    source = THINKING_TEMPLATES[name] + "{# </think> #}"
    tags = thinking_tags.detect_tags(source)
    rendered = render(source, [*CHAT, ChatMessage(role, words)], TOKENS, think)
    opens = name != "never" and think is not False
    assert thinking_tags.is_open(rendered.generation_prompt, tags) is opens
    assert rendered.text.endswith(rendered.generation_prompt)


def test_features_that_real_templates_use() -> None:
    for source, expected in [
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        (
            "{{ tools is none }}{{ documents is none }}{{ custom is defined }}",
            "TrueTrueFalse",
        ),
        (
            "  {% if true %}\n  a\n  {% endif %}\nb\n",
            "  a\nb",
        ),  # trim_blocks, lstrip_blocks
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"
            "{% break %}{% endfor %}",
            "Hello",
        ),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHib"),
        ("{{ {'a': '<é>&'} | tojson }}", '{"a": "<é>&"}'),
        (
            "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
            '{"a":2,"b":1}',
        ),
        ("{{ dict(a=1).a }}{{ dict.fromkeys(['x'], 2)['x'] }}", "12"),
        (
            "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[-1].content) }}",
            "<More>",
        ),
        ("{{ messages[::-1][0].content }}{{ strftime_now('%%') }}", "More%"),
    ]:
        rendered = render(source, CHAT, TOKENS, may_change=False)
        assert rendered.text == expected


@pytest.mark.parametrize("source", [NO_SYSTEM, ALTERNATING])
def test_a_refused_system_prompt_becomes_part_of_the_first_question(
    source: str,
) -> None:
    rendered = render(source, (SYSTEM, *CHAT), TOKENS)
    assert rendered.text == "[user]Be brief.\n\nHi[assistant]Hello[user]More"
    assert codes(rendered) == ["template-roles"]
    assert (
        "the system prompt became part of the first message"
        in rendered.notices[0].message
    )


ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source", [ONE_SYSTEM + BY_ROLE, ONE_SYSTEM + ALTERNATING_AFTER_SYSTEM]
)
def test_a_later_system_prompt_leaves_the_first_in_its_place(source: str) -> None:
    chat = (SYSTEM, HI, HELLO, ChatMessage("system", "Be kind."), MORE)
    rendered = render(source, chat, TOKENS)
    assert (
        rendered.text == "[system]Be brief.[user]Hi[assistant]Hello"
        "[user][System message]\nBe kind.\n\nMore"
    )
    assert "later system prompts" in rendered.notices[0].message
    (notice,) = render(source, (SYSTEM, SYSTEM, HI), TOKENS).notices
    assert "joined" in notice.message


def test_several_calls_are_one_a_message_where_a_template_demands_it() -> None:
    source = (
        "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length > 1 %}"
        "{{ raise_exception('single tool-calls only') }}{% endif %}"
        "({{ m.tool_calls[0].function.name }}){% endif %}{{ m.content }}{% endfor %}"
    )
    calls = tuple(ToolCall(id_, f"f{id_}", "{}") for id_ in "ab")
    asked = ChatMessage("assistant", "Look: ", tool_calls=calls)
    results = [ChatMessage("tool", f"result {id_} ", tool_call_id=id_) for id_ in "ba"]
    rendered = render(source, (HI, asked, *results, asked, *results, MORE), TOKENS)
    turn = "(fa)Look: result a (fb)result b "
    assert rendered.text == f"Hi{turn}{turn}More"
    assert codes(rendered) == ["template-roles"]

    interrupted = render(source, (HI, asked, results[0]), TOKENS)
    missing = "[no result: the call was interrupted]"
    assert interrupted.text == f"Hi(fa)Look: {missing}(fb)result b "


PARTS_ONLY = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "PARTS{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("source", [PARTS_ONLY, EITHER, BY_ROLE])
def test_no_message_is_lost_whether_a_template_reads_texts_or_parts(
    source: str,
) -> None:
    assert (
        text(source, SYSTEM, *CHAT)
        == "[system]Be brief.[user]Hi[assistant]Hello[user]More"
    )
    assert text(source, SYSTEM, HI) == "[system]Be brief.[user]Hi", (
        "nothing of the chat before"
    )
    assert text(source, HI, ChatMessage("assistant", "")) == "[user]Hi[assistant]"


def test_what_a_template_refuses_altogether_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError) as raised:
        render("{{ raise_exception('never \x1b[31mred') }}", CHAT, TOKENS)
    assert (
        raised.value.message
        == "The model's chat template rejects this chat: never red."
    )
    assert "--template: alpaca, chatml" in raised.value.hint


def test_calls_and_their_results_are_not_joined() -> None:
    call = ChatMessage("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),))
    done = ChatMessage("tool", "a", tool_call_id="1")
    source = ALTERNATING.replace(
        "(m.role == 'user') != (loop.index0 % 2 == 0)", "m.role == 'x'"
    )
    chat = (HI, MORE, call, HELLO, done, done)
    refused = (
        "{% if messages[1].role == 'user' %}{{ raise_exception('no') }}{% endif %}"
    )
    rendered = render(refused + source, chat, TOKENS)
    assert rendered.text == "[user]Hi\n\nMore[assistant][assistant]Hello[tool]a[tool]a"


def test_a_template_that_does_not_work_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for source, why in [
        ("{% if true %}", "TemplateSyntaxError"),
        ("{{ tools[0].name }}", "TypeError|UndefinedError"),
        ("{{ no.such }}", "UndefinedError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for i in range(10 ** 6) %}{% endfor %}", "OverflowError"),
        (
            "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
            "exceeds 16,777,216",
        ),
        ("{# " + "x" * 1024 * 1024 + " #}", "1,048,582 characters"),
        # what would take long, or much memory
        (
            "{% macro f(n) %}{{ f(n) if n < 9 }}{{ f(n + 1) if n < 9 }}{% endmacro %}{{ f(0) }}",
            "E",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(40) }}",
            "300,000 steps",
        ),
        ("{{ 'a' * 10**12 }}", "too long"),
        ("{{ (9 ** 9 ** 9) ** (9 ** 9) }}", "power"),
        (
            "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
            "RecursionError|MemoryError",
        ),
        ("{{ '' }} \n", "its output is empty"),
        # what would reach Python
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ namespace(__class__=1) }}", "SecurityError"),
    ]:
        monkeypatch.setattr(jinja_render, "MAX_STEPS", 300_000)  # 3 s of the real one
        with pytest.raises(UsageError) as raised:
            render(source, CHAT, TOKENS)
        assert any(each in raised.value.message for each in why.split("|")), (
            raised.value.message
        )
        assert "--template" in raised.value.hint


ESCAPES = (
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ dict.__class__ }}",
)


def test_nothing_of_python_shows_through_the_sandbox() -> None:
    for source in ESCAPES:
        assert "class" not in render("x" + source, CHAT, TOKENS).text


def render_builtin(messages: Sequence[ChatMessage], name: str) -> RenderResult:
    return render(builtin_templates.load_source(name), messages, TOKENS, name=name)


def test_every_built_in_template_says_all_that_was_said_in_order() -> None:
    for name in builtin_templates.STOP_STRINGS:
        rendered = render_builtin((SYSTEM, *CHAT), name)
        assert rendered.template == name
        places = [rendered.text.index(m.content) for m in (SYSTEM, *CHAT)]
        assert places == sorted(places)
        assert all(
            stop not in rendered.text[places[-1] + 4 :] for stop in ("Hello", "Hi")
        )
        assert {*codes(rendered)} <= {"template-roles"}, "chosen: nothing to warn of"


@pytest.mark.parametrize(
    "name", ["chatml", "llama3", "gemma", "mistral", "mistral-v7", "phi3", "vicuna"]
)
def test_a_built_in_template_is_what_its_models_were_trained_on(name: str) -> None:
    """As in llama.cpp, which leaves the first token to the tokenizer."""
    theirs = {"mistral": "mistral-v3", "mistral-v7": "mistral-v7-tekken"}.get(
        name, name
    )
    chat = (C.llama_chat_message * len(CHAT))(
        *(C.llama_chat_message(m.role.encode(), m.content.encode()) for m in CHAT)
    )
    buffer = create_string_buffer(1000)
    n = C.llama_chat_apply_template(
        theirs.encode(), chat, len(CHAT), True, buffer, 1000
    )
    first = "<s>" if name in ("llama3", "gemma", "mistral", "mistral-v7") else ""
    assert render_builtin(CHAT, name).text == first + buffer.raw[:n].decode()


def test_llama2_as_its_authors_wrote_it() -> None:
    text = "<s>[INST] Hi [/INST] Hello </s><s>[INST] More [/INST]"
    assert render_builtin(CHAT, "llama2").text == text


# --- what templates with tools do

CALL = ChatMessage(
    "assistant", "", tool_calls=(ToolCall("c1", "f", '{"city": "Rome"}'),)
)
RESULT = ChatMessage("tool", "sunny", tool_call_id="c1")


def render_tools(source: str, *tools: Mapping[str, object]) -> str:
    wrapped = [{"type": "function", "function": tool} for tool in tools]
    return render(source, [HI], TOKENS, tools=json.dumps(wrapped)).text


def test_a_template_may_change_a_list_that_it_made() -> None:
    """Kimi K2's collects the ids of calls, for the results that follow."""
    source = (
        "{% set ns = namespace(ids=[]) %}{% for m in messages %}"
        "{% for c in m.tool_calls %}{% set _ = ns.ids.append('f:' + c.id) %}{% endfor %}"
        "{% if m.role == 'tool' %}{{ ns.ids.pop(0) }}={{ m.content }}{% endif %}{% endfor %}"
    )
    rendered = render(source, (HI, CALL, RESULT), TOKENS, may_change=False)
    assert rendered.text.startswith("f:")


@pytest.mark.parametrize(
    "given",
    [
        "messages",
        "tools",
        "tools[0].function.parameters.required",
        "messages[1].tool_calls",
        "tools[0].function.parameters.properties",
    ],
)
@pytest.mark.parametrize("change", ["append(1)", "pop()", "extend([1])", "clear()"])
def test_a_template_changes_nothing_that_it_is_given(given: str, change: str) -> None:
    parameters = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    tools = json.dumps(
        [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    )
    source = f"{{{{ {given}.{change} }}}}"
    with pytest.raises(UsageError, match=r"unsafe|has no attribute"):
        render(source, (HI, CALL, RESULT), TOKENS, tools=tools)


def test_a_list_that_grows_without_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jinja_render, "MAX_STEPS", 300_000)
    source = (
        "{% set l = [1] %}{% for i in l %}{% set _ = l.append(l) %}{% endfor %}{{ l }}"
    )
    with pytest.raises(UsageError, match="300,000 steps"):
        render(source, CHAT, TOKENS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ ('{\"a\": [1]}' | from_json).a[0] }}", "1"),
        ("{{ messages | map(attribute='role') | tojson }}", '["user"]'),
        ("x{% for tool in tools %}{{ tool }}{% endfor %}", "x"),
        ("x{{ functions }}{{ datetime[:0] }}", "x[]"),
    ],
)
def test_what_templates_with_tools_use(source: str, expected: str) -> None:
    assert render(source, (HI,), TOKENS, may_change=False).text == expected


def test_functions_are_the_tools_as_a_text() -> None:
    written = render_tools("{{ functions }}", {"name": "f"})
    assert json.loads(written) == [{"name": "f"}]


WRITES_ARGUMENTS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
    "{{ WRITTEN }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    "written",
    [
        "c.function.arguments | tojson",
        "c.function.arguments if c.function.arguments is string "
        "else c.function.arguments | tojson",
        "'' + c.function.arguments",  # Functionary
        "c.function.arguments",
    ],
)
def test_arguments_are_json_however_a_template_takes_them(written: str) -> None:
    source = WRITES_ARGUMENTS.replace("WRITTEN", written)
    assert text(source, HI, CALL, RESULT) == 'Hi{"city": "Rome"}sunny'


@pytest.mark.parametrize(
    ("source", "tool", "expected"),
    [
        # Seed-OSS, gpt-oss, and Hermes 2, each with the tool at which it failed.
        ("{{ tools[0].function.parameters.properties | items | list }}", {}, "[]"),
        ("{{ 'x' + tools[0].function.description }}", {}, "x"),
        ("{{ 'x' + tools[0].function.description }}", {"description": None}, "x"),
        (
            "{% macro name(type) %}{% if type == 'string' %}str{% else %}"
            "{% for t in type %}{{ name(t) }}{% endfor %}{% endif %}{% endmacro %}"
            "{{ name(tools[0].function.parameters.properties.a.type) }}",
            {"parameters": {"properties": {"a": {"type": ["string", "null"]}}}},
            "str",
        ),
        (
            "{{ 'x' + tools[0].function.parameters.properties.a.description }}",
            {"parameters": {"properties": {"a": True}}},
            "x",
        ),
    ],
)
def test_a_tool_need_not_have_what_a_template_takes_for_granted(
    source: str, tool: dict[str, object], expected: str
) -> None:
    assert render_tools(source, {"name": "f", **tool}) == expected


def test_a_tool_that_a_template_can_read_stays_as_it_came() -> None:
    tool = {"name": "f", "parameters": {"properties": {"a": {"type": ["string"]}}}}
    written = render_tools("{{ tools[0].function | tojson }}", tool)
    assert json.loads(written) == tool


_NUMBERS_CALLS = """{% for m in messages %}[{{ m.role }}]
{%- for call in m.tool_calls or [] -%}
<{{ 'functions.' + call.function.name + ':' + loop.index0|string }}>
{%- endfor -%}
{%- if m.role == 'tool' %}Return of {{ m.tool_call_id }}: {% endif %}{{ m.content }}
{%- endfor %}"""


@pytest.mark.parametrize("id_", ["call_0123456789abcdef01234567", "functions.f:0", "x"])
def test_a_result_belongs_to_its_call_where_the_template_numbers_calls(
    id_: str,
) -> None:
    """As the first template of Kimi K2 does; whatever ids the client has."""
    calls = (ToolCall(id_, "f", "{}"), ToolCall("another", "g", "{}"))
    chat = [
        ChatMessage("user", "Ask."),
        ChatMessage("assistant", "", tool_calls=calls),
        ChatMessage("tool", "of g", tool_call_id="another"),
        ChatMessage("tool", "of f", tool_call_id=id_),
    ]

    text = render(_NUMBERS_CALLS, chat, {}).text

    assert "<functions.f:0><functions.g:1>" in text
    assert "Return of functions.g:1: of g" in text
    assert "Return of functions.f:0: of f" in text


_NAMES_NO_CALLS = """{% for m in messages %}[{{ m.role }}]
{%- for call in m.tool_calls or [] %}<{{ call.function.name }}>{% endfor -%}
{{ m.content }}
{%- endfor %}"""


def test_results_come_in_the_order_of_their_calls() -> None:
    """Most templates write no ids: the order is all that a model has."""
    calls = tuple(ToolCall(f"id-{name}", name, "{}") for name in "fgh")
    answer = ChatMessage("assistant", "", tool_calls=calls)
    results = [
        ChatMessage("tool", f" of {name}", tool_call_id=f"id-{name}") for name in "hfg"
    ]
    question = ChatMessage("user", "Ask.")
    chat = [question, answer, *results, question, answer, *reversed(results)]

    text = render(_NAMES_NO_CALLS, chat, {}).text

    assert text.count("[tool] of f[tool] of g[tool] of h") == 2


def test_a_result_of_no_call_stays_where_it_is() -> None:
    call = ToolCall("id-f", "f", "{}")
    chat = [
        ChatMessage("user", "Ask."),
        ChatMessage("assistant", "", tool_calls=(call,)),
        ChatMessage("tool", " of f", tool_call_id="id-f"),
        ChatMessage("tool", " of none", tool_call_id="unknown"),
        ChatMessage("tool", " without", tool_call_id=""),
    ]
    text = render(_NAMES_NO_CALLS, chat, {}).text
    assert text.endswith("[tool] of f[tool] of none[tool] without")
