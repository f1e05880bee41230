"""Chat templates: what real ones use, roles they refuse, and those that do not work."""

from __future__ import annotations

from datetime import datetime

import pytest

from localspec.errors import UsageError
from localspec.models.chat_template import builtin_templates
from localspec.models.chat_template.jinja_render import render, render_builtin
from localspec.protocol.wire import ChatMessage, RenderResult

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = ChatMessage("system", "Be brief.")
HI, HELLO, MORE = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "Hello"),
    ChatMessage("user", "More"),
)
CHAT = (HI, HELLO, MORE)
BY_ROLE = "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
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


# --- features -------------------------------------------------------------------------------


FEATURES = [
    (BY_ROLE, "[user]Hi[assistant]Hello[user]More"),
    ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<s></s>"),
    ("{% if add_generation_prompt %}go{% endif %}", "go"),
    ("{{ tools is none }}{{ documents is none }}{{ custom is defined }}", "TrueTrueFalse"),
    ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),  # trim_blocks, lstrip_blocks
    (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"
        "{% break %}{% endfor %}",
        "Hello",
    ),
    ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHib"),
    ("{{ {'a': '<é>&'} | tojson }}", '{"a": "<é>&"}'),
    ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
    ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
    ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
    ("{{ messages | map(attribute='role') | join(',') }}", "user,assistant,user"),
    (
        "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}"
        "{{ n.i }}",
        "3",
    ),
    ("{{ dict(a=1).a }}{{ dict.fromkeys(['x'], 2)['x'] }}", "12"),
    ("{{ messages[0].content.split('i')[0] }}{{ 'a b'.title() }}", "HA B"),
    ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[-1].content) }}", "<More>"),
    ("{{ messages[::-1][0].content }}", "More"),
]


def test_features_that_real_templates_use() -> None:
    for source, expected in FEATURES:
        assert text(source) == expected


def test_the_date_is_todays() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    assert text("{{ strftime_now('%Y-%m-%d') }}") in (
        before,
        datetime.now().strftime("%Y-%m-%d"),
    )


def test_a_wish_to_think_reaches_templates_that_ask() -> None:
    for name in ("enable_thinking", "thinking"):
        source = f"{{{{ {name} if {name} is defined else 'as you like' }}}}"
        assert [text(source, think=wish) for wish in (None, True, False)] == [
            "as you like",
            "True",
            "False",
        ]


def test_no_text_of_a_message_is_taken_for_a_template() -> None:
    said = "{{ 7 * 7 }} {% raw %} <b>&"
    assert text(BY_ROLE, ChatMessage("user", said)) == f"[user]{said}"


# --- thinking in earlier answers ------------------------------------------------------------


EARLIER = [
    ("<think>\nhm\n</think>\n\nHello", "hm|Hello"),
    ("hm</think>Hello", "hm|Hello"),  # the prompt had begun it
    ("<think>cut sho", "cut sho|"),
    ("<think></think>Hello", "|Hello"),
    ("Hello", "|Hello"),
    ("Say <think> to think.", "|Say <think> to think."),
]


def test_an_earlier_answers_thinking_is_given_by_its_own_name() -> None:
    for said, expected in EARLIER:
        source = "{{ messages[1].reasoning_content }}|{{ messages[1].content }}{# </think> #}"
        assert text(source, HI, ChatMessage("assistant", said), MORE) == expected


def test_a_template_that_knows_no_thinking_gets_the_answer_as_it_is() -> None:
    said = ChatMessage("assistant", "<think>hm</think>Hello")
    assert text(BY_ROLE, HI, said) == "[user]Hi[assistant]<think>hm</think>Hello"


# --- roles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [NO_SYSTEM, ALTERNATING])
def test_a_refused_system_prompt_becomes_part_of_the_first_question(source: str) -> None:
    rendered = render(source, (SYSTEM, *CHAT), TOKENS)
    assert rendered.text == "[user]Be brief.\n\nHi[assistant]Hello[user]More"
    assert codes(rendered) == ["template-roles"]
    assert "the system prompt became part of the first message" in rendered.notices[0].message


def test_neighbours_of_a_role_are_joined_where_they_must_alternate() -> None:
    rendered = render(ALTERNATING, (HI, MORE, HELLO), TOKENS)
    assert rendered.text == "[user]Hi\n\nMore[assistant]Hello"
    assert codes(rendered) == ["template-roles"]
    assert "joined" in rendered.notices[0].message


def test_a_chat_that_is_taken_is_not_changed() -> None:
    assert text(BY_ROLE, SYSTEM, HI, MORE) == "[system]Be brief.[user]Hi[user]More"


def test_what_a_template_refuses_altogether_is_rendered_by_a_fallback() -> None:
    rendered = render("{{ raise_exception('never \x1b[31mred') }}", CHAT, TOKENS)
    assert rendered.template == "chatml"
    assert rendered.text.startswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello")
    assert codes(rendered) == ["template-fallback"]
    assert rendered.notices[0].message == (
        "The model's chat template rejects this chat: never red. Using chatml instead."
    )
    assert "--template" in rendered.notices[0].hint


# --- templates that do not work -------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% if true %}", "TemplateSyntaxError"),
        ("{% nonsense %}", "TemplateSyntaxError"),
        ("{{ tools[0].name }}", "TypeError|UndefinedError"),
        ("{{ no.such }}", "UndefinedError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for i in range(10 ** 6) %}{% endfor %}", "OverflowError"),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "exceeds 16,777,216"),
        ("{% include 'other' %}", "TypeError"),
        ("{{ '' }} \n", "its output is empty"),
        # what would reach Python
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ namespace(__class__=1) }}", "SecurityError"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "SecurityError"),
    ],
)
def test_a_template_that_does_not_work_is_replaced_and_named(source: str, why: str) -> None:
    rendered = render(source, CHAT, TOKENS)
    assert rendered.template == "chatml"
    assert codes(rendered) == ["template-fallback"]
    message = rendered.notices[0].message
    assert any(each in message for each in why.split("|")), message


ESCAPES = ("{{ ''|attr('__class__') }}", "{{ '{0.__class__}'.format(1) }}", "{{ dict.__class__ }}")


def test_nothing_of_python_shows_through_the_sandbox() -> None:
    for source in ESCAPES:
        assert "class" not in render(source, CHAT, TOKENS).text


# --- by name --------------------------------------------------------------------------------


def test_every_name_has_a_template_and_every_template_a_name() -> None:
    folder = builtin_templates._FOLDER
    assert {path.stem for path in folder.glob("*.jinja")} == set(builtin_templates.STOP_STRINGS)


def test_every_fallback_says_all_that_was_said_in_order() -> None:
    for name in builtin_templates.STOP_STRINGS:
        rendered = render_builtin((SYSTEM, *CHAT), TOKENS, name)
        assert rendered.template == name
        places = [rendered.text.index(m.content) for m in (SYSTEM, *CHAT)]
        assert places == sorted(places)
        assert all(stop not in rendered.text[places[-1] + 4 :] for stop in ("Hello", "Hi"))
        assert {*codes(rendered)} <= {"template-roles"}, "chosen: nothing to warn of"


TRAINED_ON = [
    (
        "chatml",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n",
    ),
    (
        "llama3",
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nMore<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        "gemma",
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello"
        "<end_of_turn>\n<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n",
    ),
    ("mistral", "<s>[INST] Hi[/INST] Hello</s>[INST] More[/INST]"),
    ("mistral-v7", "<s>[INST]Hi[/INST]Hello</s>[INST]More[/INST]"),
    ("llama2", "<s>[INST] Hi [/INST] Hello </s><s>[INST] More [/INST]"),
    (
        "phi3",
        "<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nMore<|end|>\n<|assistant|>\n",
    ),
]


def test_a_fallback_is_what_its_models_were_trained_on() -> None:
    for name, expected in TRAINED_ON:
        assert render_builtin(CHAT, TOKENS, name).text == expected


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        render_builtin(CHAT, TOKENS, "../secret")
    assert "chatml" in raised.value.hint
