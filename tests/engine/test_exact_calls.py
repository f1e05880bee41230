"""Calls in a model's own format are exact from their mark on, with every draft."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.errors import GrammarError
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolCallParser
from localspec.protocol.events import Notice
from localspec.protocol.wire import GenerateCommand, LoadCommand, SamplingParams
from tests.engine.test_generic_tools import HI, ROOMY, SPECS
from tests.support import tinygguf
from tests.support.channels import speaker
from tests.support.sessions import GREEDY, Said, folded, loaded
from tests.support.zoo import CHAT_CONTROLS, THINKER_TEMPLATE

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome"]},
        "days": {"type": "integer", "minimum": 3, "maximum": 3},
    },
    "required": ["city", "days"],
}


def make_tool(name: str, schema: Any) -> dict[str, Any]:
    function = {"name": name, "description": "It looks.", "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = json.dumps([make_tool("weather", CITY)])
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}CALL{%- endfor %}
{{- '<|im_end|>' + '\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}"""
_NAME = "{{- call.function.name }}"
_JSON = "{{- call.function.arguments | tojson }}"
_ITEMS = "{%- for key, value in call.function.arguments.items() %}"
_VALUE = "{{- value if value is string else value | tojson }}"


def say(text: str) -> str:
    """A statement of Jinja that writes a text."""
    return f"{{{{- {text!r} }}}}"


class Form:
    """A way of writing calls, with the control tokens that it has."""

    def __init__(
        self, mark: str, statements: Iterable[str], call: str, *controls: str
    ) -> None:
        self.mark = mark
        self.template = TEMPLATE.replace("CALL", "".join(statements))
        self.call = call
        self.controls = controls


FORMS: dict[str, Form] = {
    "tags": Form(
        "<tool_call>",
        [say('<tool_call>\n{"name": "'), _NAME, say('", "arguments": '), _JSON,
         say("}\n</tool_call>")],
        '\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
    ),
    "tags, as control tokens": Form(
        "<tool_call>",
        [say('<tool_call>{"name": "'), _NAME, say('", "arguments": '), _JSON,
         say("}</tool_call>")],
        '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}</tool_call>',
        "<tool_call>", "</tool_call>",
    ),
    "functions": Form(
        "<tool_call>",
        [say("<tool_call>\n<function="), _NAME, say(">\n"), _ITEMS,
         say("<parameter="), "{{- key }}", say(">\n"), _VALUE, say("\n</parameter>\n"),
         "{%- endfor %}", say("</function>\n</tool_call>")],
        "\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    "keys": Form(
        "<tool_call>",
        [say("<tool_call>"), _NAME, say("\n"), _ITEMS, say("<arg_key>"), "{{- key }}",
         say("</arg_key>\n<arg_value>"), _VALUE, say("</arg_value>\n"),
         "{%- endfor %}", say("</tool_call>")],
        "weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    "mistral": Form(
        "[TOOL_CALLS]",
        [say("[TOOL_CALLS]"), _NAME, say("[ARGS]"), _JSON],
        'weather[ARGS]{"city": "Rome", "days": 3}',
        "[TOOL_CALLS]", "[ARGS]",
    ),
    "gemma": Form(
        "<|tool_call>",
        [say("<|tool_call>call:"), _NAME, say("{"), _ITEMS, "{{- key + ':' }}",
         """{{- '<|"|>' + value + '<|"|>' if value is string else value | tojson }}""",
         "{{- ',' if not loop.last }}", "{%- endfor %}", say("}<tool_call|>")],
        'call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
        "<|tool_call>", '<|"|>', "<tool_call|>",
    ),
}  # fmt: skip


def parrot(path: Path, form: Form, *words: str) -> Path:
    model = tinygguf.parrot(
        ("I", "▁look.", form.mark, *words),
        n_ctx=4096,
        controls=(*form.controls, *CHAT_CONTROLS),
    )
    return replace(model, template=form.template).write(path)


def ask(session: Session, **more: Any) -> Said:
    given: dict[str, Any] = {
        "messages": (HI,),
        "sampling": GREEDY,
        "max_tokens": 200,
        "tools": TOOLS,
    }
    return folded(session.generate(GenerateCommand(**given | more)))


def notices(session: Session, **more: Any) -> list[str]:
    command = GenerateCommand(
        messages=(HI,), sampling=GREEDY, max_tokens=4, **{"tools": TOOLS} | more
    )
    events = list(session.generate(command))
    return [event.code for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize("name", FORMS)
def test_a_call_is_exact_in_the_models_own_format_with_every_draft(
    name: str, tmp_path: Path
) -> None:
    form = FORMS[name]
    path = parrot(tmp_path / "made.gguf", form, "sunny", "(Rome)")
    with loaded(path, path, ROOMY) as session:
        found = session.ready.settings["chat"]["tools"]
        assert found != "generic"
        plain = ask(session, spec="off")
        assert plain.text.startswith(f"I look.{form.mark}{form.call}")
        sampling = SamplingParams(temperature=1.5, seed=7)
        sampled = ask(session, spec="off", sampling=sampling)
        for spec in SPECS:
            assert ask(session, spec=spec).text == plain.text
            assert ask(session, spec=spec, sampling=sampling).text == sampled.text
    parser = ToolCallParser(found, {"weather": CITY})
    deltas = [*parser.feed(plain.text), *parser.finish()]
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    written = "".join(delta.arguments for delta in calls if delta.index == 0)
    assert json.loads(written) == {"city": "Rome", "days": 3}


@pytest.mark.parametrize("name", FORMS)
def test_text_before_a_call_is_that_of_a_chat_without_tools(
    name: str, tmp_path: Path
) -> None:
    form = FORMS[name]
    path = parrot(tmp_path / "made.gguf", form, "sunny", "(Rome)")
    with loaded(path, path, ROOMY) as session:
        free = ask(session, tools="")
        assert free.text == f"I look.{form.mark}sunny(Rome)"
        assert ask(session).text.startswith(f"I look.{form.mark}")


def test_what_the_schema_forces_takes_few_passes(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", FORMS["tags"], "sunny")
    with loaded(path, settings=ROOMY) as session:
        plain = ask(session, spec="off")
        drafted = ask(session, spec="lookup")
    assert drafted.text == plain.text
    assert len(drafted.rounds) < len(plain.rounds) / 2
    assert any("grammar" in (each.source or "") for each in drafted.rounds)


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_that_must_be_a_call_is_one(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    path = parrot(tmp_path / "made.gguf", form, "sunny")
    with loaded(path, path, ROOMY) as session:
        plain = ask(session, must_call=True, spec="off")
        assert plain.text == f"{form.mark}{form.call}"
        assert plain.reason == "eog"
        for spec in SPECS:
            assert ask(session, must_call=True, spec=spec).text == plain.text


def test_an_answer_that_must_be_a_call_may_think_first(tmp_path: Path) -> None:
    form = FORMS["tags"]
    path = tmp_path / "made.gguf"
    words = ("A", "▁thought", "</think>", "I", "▁look.")
    controls = ("<think>", "</think>", *CHAT_CONTROLS)
    model = tinygguf.parrot(words, n_ctx=4096, controls=controls)
    template = form.template + "{{- '<think>' }}"
    source = f"{template}{{# </think> #}}"
    replace(model, template=source).write(path)
    with loaded(path, path, ROOMY) as session:
        plain = ask(session, must_call=True, spec="off")
        assert plain.text == f"A thought</think>{form.mark}{form.call}"
        for spec in SPECS:
            assert ask(session, must_call=True, spec=spec).text == plain.text


def test_a_model_without_a_format_must_call_too(tmp_path: Path) -> None:
    path = tmp_path / "made.gguf"
    model = tinygguf.parrot(("I", "▁look."), n_ctx=4096, controls=CHAT_CONTROLS)
    replace(model, template=THINKER_TEMPLATE).write(path)
    with loaded(path, settings=ROOMY) as session:
        said = ask(session, must_call=True)
    assert said.text == f"{FORMS['tags'].mark}{FORMS['tags'].call}"


def test_a_schema_that_cannot_be_used_is_named_once(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", FORMS["tags"], "sunny")
    wrong = json.dumps([make_tool("odd", {"type": "object", "not": {}})])
    with loaded(path, settings=ROOMY) as session:
        assert notices(session) == []
        assert notices(session, tools=wrong) == ["calls_loose"]
        assert notices(session, tools=wrong) == []


def test_calls_in_a_layout_that_is_not_known_are_free(tmp_path: Path) -> None:
    form = FORMS["tags"]
    other = Form(
        form.mark,
        [say('<tool_call> {"arguments": '), _JSON, say(', "name": "'), _NAME,
         say('"}</tool_call>')],
        "",
    )  # fmt: skip
    path = parrot(tmp_path / "made.gguf", other, "sunny")
    with loaded(path, settings=ROOMY) as session:
        assert session.ready.settings["chat"]["tools"] == "tags"
        assert notices(session) == ["calls_free"]
        assert ask(session).text == "I look.<tool_call>sunny"
        with pytest.raises(GrammarError, match="how this model writes"):
            ask(session, must_call=True)


def test_only_tools_that_may_be_called_are_called(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", FORMS["functions"], "sunny")
    nothing = {"type": "object", "properties": {}}
    both = json.dumps([*json.loads(TOOLS), make_tool("clock", nothing)])
    with loaded(path, settings=ROOMY) as session:
        said = ask(session, tools=both, callable_tools=("clock",))
    assert "<tool_call>\n<function=clock>\n</function>\n</tool_call>" in said.text


def test_a_begun_call_is_resumed(tmp_path: Path) -> None:
    path = parrot(tmp_path / "made.gguf", FORMS["functions"], "sunny")
    with loaded(path, settings=ROOMY) as session:
        whole = ask(session)
        for cut in range(1, len(whole.ids), 7):
            begun = tuple(whole.ids[:cut])
            rest = ask(session, resumed_tokens=begun)
            assert [*begun, *rest.ids] == whole.ids


def test_a_call_on_a_channel_is_exact_and_ends_the_answer(tmp_path: Path) -> None:
    words = ("<|channel|>", "commentary", "▁to=functions.", "sunny", "(Rome)")
    path = speaker(words).write(tmp_path / "made.gguf")
    with loaded(path, path, ROOMY) as session:
        assert session.ready.settings["chat"]["tools"] == "gpt-oss"
        plain = ask(session, spec="off")
        assert plain.text.startswith("<|channel|>commentary to=functions.weather")
        assert plain.text.endswith('<|message|>{"city": "Rome", "days": 3}')
        assert plain.reason == "eog"
        forced = ask(session, spec="off", must_call=True)
        assert forced.text.startswith("<|channel|>commentary to=functions.weather")
        assert forced.text.endswith('{"city": "Rome", "days": 3}')
        for spec in SPECS:
            assert ask(session, spec=spec).text == plain.text
            assert ask(session, spec=spec, must_call=True).text == forced.text


def test_an_idle_engine_prepares_calls_in_steps(tmp_path: Path) -> None:
    """An answer between two steps is as ever, and no step is repeated."""
    path = parrot(tmp_path / "made.gguf", FORMS["tags"], "sunny", "(Rome)")
    with loaded(path, settings=ROOMY) as session:
        expected = ask(session).text
        assert list(session.measure_when_idle()) == []
    load = LoadCommand(str(path), None, ROOMY, ROOMY, expects_tools=True)
    with closing(Session(load)) as session:
        n_steps = 0
        while True:
            preparing = session.measure_when_idle()
            if next(preparing, "ended") == "ended":
                break
            preparing.close()
            n_steps += 1
            assert ask(session, tools="").reason == "eog"
        assert n_steps == 3
        assert session._preparer._grammars.is_ready
        assert ask(session).text == expected


def test_a_model_that_calls_nothing_prepares_nothing(tmp_path: Path) -> None:
    path = tinygguf.parrot(("I", "▁look.")).write(tmp_path / "made.gguf")
    load = LoadCommand(str(path), expects_tools=True)
    with closing(Session(load)) as session:
        assert list(session.measure_when_idle()) == []


KIMI = """\
{%- macro open_tag(tag) -%}{{- '<|open|>' + tag -}}{{- '<|sep|>' -}}{%- endmacro -%}
{%- macro close_tag(tag) -%}{{- '<|close|>' + tag + '<|sep|>' -}}{%- endmacro -%}
{%- macro type_of(value) -%}
{%- if value is boolean -%}boolean{%- elif value is none -%}null
{%- elif value is number -%}number{%- elif value is string -%}string
{%- elif value is mapping -%}object{%- else -%}array{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{- open_tag('message role="system"') + (tools | tojson) + close_tag('message') }}{% endif %}
{%- for m in messages %}
{{- open_tag('message role="' + m.role + '"') }}
{%- if m.role == 'assistant' %}
{{- open_tag('response') + m.content + close_tag('response') }}
{%- if m.tool_calls %}
{{- open_tag('tools') }}
{%- for call in m.tool_calls %}
{{- open_tag('call tool="' + call.function.name + '" index="' + loop.index | string + '"') }}
{%- for key, value in call.function.arguments.items() %}
{{- open_tag('argument key="' + key + '" type="' + type_of(value) + '"') }}
{{- value if value is string else value | tojson }}
{{- close_tag('argument') }}
{%- endfor %}
{{- close_tag('call') }}
{%- endfor %}
{{- close_tag('tools') }}
{%- endif %}
{%- else %}{{- m.content }}{% endif %}
{{- close_tag('message') }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- open_tag('message role="assistant"') + open_tag('think') }}
{%- endif %}"""


def test_a_call_in_a_section_behind_the_response_is_exact(tmp_path: Path) -> None:
    """As Kimi K3's, whose mark begins as the header of a section does."""
    before = ("Hm.", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "I", "▁look.")
    mark = ("<|close|>response<|sep|>", "<|open|>", "tools", "<|sep|>")
    model = tinygguf.parrot(
        (*before, *mark, "sunny"), n_ctx=4096, controls=CHAT_CONTROLS
    )
    path = replace(model, template=KIMI).write(tmp_path / "made.gguf")
    with loaded(path, path, ROOMY) as session:
        chat = session.ready.settings["chat"]
        assert (chat["tools"], chat["exact_calls"]) == ("kimi3", True)
        plain = ask(session, spec="off")
        assert '<|open|>tools<|sep|><|open|>call tool="weather" index="' in plain.text
        assert "Rome<|close|>argument<|sep|>" in plain.text
        for spec in SPECS:
            assert ask(session, spec=spec).text == plain.text
