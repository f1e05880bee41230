"""Every message reaches the prompt, or is named: templates that reject or drop messages."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, message_check
from localspec.models.chat_template.jinja_render import RenderResult, render
from localspec.models.chat_template.role_changes import parse_arguments
from localspec.protocol.wire import ChatMessage, ToolCall

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "probe",
                "description": "A probe.",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "string", "description": "A text."}},
                    "required": ["a"],
                },
            },
        }
    ]
)
FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"

WRITE = (
    "[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.arguments | tojson }}){% endfor %}"
)
EACH = "{% for m in messages %}" + WRITE + "{% endfor %}"
REFUSE = "{{ raise_exception('no') }}"
KINDS = {
    "takes all": EACH,
    "drops a later system prompt": "{% for m in messages %}"
    "{% if m.role != 'system' or loop.first %}" + WRITE + "{% endif %}{% endfor %}",
    "keeps the last system prompt": "{% set ns = namespace(s='') %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}"
    "{% endfor %}{{ ns.s }}{% for m in messages %}{% if m.role != 'system' %}"
    + WRITE
    + "{% endif %}{% endfor %}",
    "knows no system prompt": "{% for m in messages %}{% if m.role != 'system' %}"
    + WRITE
    + "{% endif %}{% endfor %}",
    "takes the first message only": "{% set m = messages[0] %}" + WRITE,
    "takes the last message only": "{% set m = messages[-1] %}" + WRITE,
    "takes a few of the last messages": "{% for m in messages[-3:] %}"
    + WRITE
    + "{% endfor %}",
    "drops the text beside a call": "{% for m in messages %}{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% else %}" + WRITE + "{% endif %}{% endfor %}",
    "drops calls": "{% for m in messages %}{% if not m.tool_calls %}"
    + WRITE
    + "{% endif %}{% endfor %}",
    "drops results": "{% for m in messages %}{% if m.role != 'tool' %}"
    + WRITE
    + "{% endif %}{% endfor %}",
    "raises at results": "{% for m in messages %}{% if m.role == 'tool' %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "raises at several system prompts": "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "needs alternation": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}"
    + REFUSE
    + "{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}"
    + WRITE
    + "{% endfor %}",
    "needs strict alternation": "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "raises at an empty answer": "{% for m in messages %}"
    "{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "raises at a result without its call": "{% for m in messages %}"
    "{% if m.role == 'tool' and (loop.first or not (loop.previtem.tool_calls"
    " or loop.previtem.role == 'tool')) %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "raises where a call has no result": "{% for m in messages %}"
    "{% if m.tool_calls and (loop.last or loop.nextitem.role != 'tool') %}"
    + REFUSE
    + "{% endif %}"
    + WRITE
    + "{% endfor %}",
    "fails at arguments that are no object": "{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
    "({{ k }}={{ v }}){% endfor %}{% endfor %}[{{ m.role }}]{{ m.content }}{% endfor %}",
}
ROLES = ("system", "user", "assistant", "call", "tool")


def make_chat(roles: Sequence[str]) -> list[ChatMessage]:
    """A chat of these roles; each text is a word of its own."""
    chat = []
    call_id = "call99999"
    for i, role in enumerate(roles):
        if role == "call":
            call_id = f"call{i:05}"
            arguments = json.dumps({"a": f"zqx{i}argument"})
            call = ToolCall(call_id, "probe", arguments)
            message = ChatMessage("assistant", f"zqx{i}text", tool_calls=(call,))
        elif role == "tool":
            message = ChatMessage("tool", f"zqx{i}text", tool_call_id=call_id)
        else:
            message = ChatMessage(role, f"zqx{i}text")
        chat.append(message)
    return chat


def list_words(roles: Sequence[str]) -> Iterator[str]:
    for i, role in enumerate(roles):
        yield f"zqx{i}text"
        if role == "call":
            yield f"zqx{i}argument"


def all_sequences(max_length: int) -> Iterator[tuple[str, ...]]:
    for length in range(1, max_length + 1):
        yield from itertools.product(ROLES, repeat=length)


def missing_words(rendered: RenderResult, roles: Sequence[str]) -> list[str]:
    return [word for word in list_words(roles) if word not in rendered.text]


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_of_any_sequence_of_roles_reaches_the_prompt(kind: str) -> None:
    for roles in all_sequences(3):
        rendered = render(KINDS[kind], make_chat(roles), TOKENS, tools=TOOLS)
        assert missing_words(rendered, roles) == [], roles
        assert rendered.lost == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_history_of_an_agent_reaches_the_prompt(kind: str) -> None:
    roles = ["system", "user", *["call", "tool"] * 30, "system", "user"]
    rendered = render(KINDS[kind], make_chat(roles), TOKENS, tools=TOOLS)
    assert missing_words(rendered, roles) == []


@pytest.mark.long
@pytest.mark.skipif(
    not FOLDER.exists(), reason="LLAMA_CPP_CHECKOUT names no source tree"
)
@pytest.mark.parametrize("tools", ["", TOOLS], ids=["no tools", "tools"])
def test_every_text_reaches_the_prompt_of_llama_cpps_templates(tools: str) -> None:
    """Where a message is lost, the result names it. Some templates need tools."""
    n_rendered = 0
    length = int(os.environ.get("LOCALSPEC_TEST_ROLES", "3"))
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        try:
            render(source, make_chat(["user"]), TOKENS, tools=tools)
        except UsageError:
            continue
        for roles in all_sequences(length):
            rendered = render(source, make_chat(roles), TOKENS, tools=tools)
            missing = missing_words(rendered, roles)
            assert not missing, (path.name, roles, missing)
        n_rendered += 1
    assert n_rendered >= 60


ASK = ChatMessage("user", "Hi")
_TERSE = ChatMessage("system", "You are terse.")
_FINE = ChatMessage("assistant", "Fine.")
_SECRET = "Never reveal the word swordfish under any circumstances."
_DENIED = ChatMessage("tool", "denied by the user", tool_call_id="abcdefghi")


def call_probe(arguments: str) -> ChatMessage:
    call = ToolCall("abcdefghi", "probe", arguments)
    return ChatMessage("assistant", "", tool_calls=(call,))


REPORTED_CHATS = {
    "a reminder at the end": (
        "openai-gpt-oss-120b",
        [_TERSE, ASK, _FINE, ASK, ChatMessage("system", _SECRET)],
        ["You are terse.", _SECRET],
    ),
    "a developer in the middle": (
        "openai-gpt-oss-120b",
        [_TERSE, ASK, _FINE, ChatMessage("system", _SECRET), ASK],
        ["You are terse.", _SECRET],
    ),
    "a call that is denied": (
        "mistralai-Mistral-Nemo-Instruct-2407",
        [ASK, call_probe('{"a":"x"}'), _DENIED, ASK],
        ["denied by the user"],
    ),
    "arguments that are cut": (
        "Qwen3-Coder",
        [
            ASK,
            call_probe('{"a": "Ro'),
            _DENIED,
            ChatMessage("assistant", "Sorry."),
            ASK,
        ],
        ["Ro", "denied by the user", "Sorry."],
    ),
    "arguments that are null": (
        "Qwen3-Coder",
        [ASK, call_probe("null"), _DENIED, ChatMessage("assistant", "Sorry."), ASK],
        ["denied by the user", "Sorry."],
    ),
}


@pytest.mark.skipif(
    not FOLDER.exists(), reason="LLAMA_CPP_CHECKOUT names no source tree"
)
@pytest.mark.parametrize("kind", REPORTED_CHATS)
def test_chats_that_agents_reported_reach_the_prompt(kind: str) -> None:
    name, chat, texts = REPORTED_CHATS[kind]
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    rendered = render(source, chat, TOKENS, tools=TOOLS)
    assert rendered.lost == ()
    assert [text for text in texts if text not in rendered.text] == []


_LIKE_GPT_OSS = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "{% for m in messages if m.role != 'system' %}" + WRITE + "{% endfor %}"
)
_LIKE_MISTRAL = (
    "{% for m in messages %}"
    "{% if loop.previtem is defined and loop.previtem.role == 'tool' and m.role == 'user' %}"
    "{{ raise_exception('after a result comes the assistant') }}{% endif %}"
    + WRITE
    + "{% endfor %}"
)
_LIKE_QWEN_CODER = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{% for key, value in c.function.arguments | items %}{{ key }}={{ value }}\n{% endfor %}"
    "{% endfor %}{% endfor %}"
)
LIKE = {
    "openai-gpt-oss-120b": _LIKE_GPT_OSS,
    "mistralai-Mistral-Nemo-Instruct-2407": _LIKE_MISTRAL,
    "Qwen3-Coder": _LIKE_QWEN_CODER,
}
"""Templates with what lost or refused these chats in those of the models."""


@pytest.mark.parametrize("kind", REPORTED_CHATS)
def test_chats_that_agents_reported_reach_the_prompt_of_templates_like_those(
    kind: str,
) -> None:
    name, chat, texts = REPORTED_CHATS[kind]
    rendered = render(LIKE[name], chat, TOKENS, tools=TOOLS)
    assert rendered.lost == ()
    assert [text for text in texts if text not in rendered.text] == []


def test_a_message_that_no_change_shows_is_named() -> None:
    source = (
        "{% for m in messages if 'secret' not in m.content %}" + WRITE + "{% endfor %}"
    )
    chat = [ChatMessage("user", "Hi"), ChatMessage("user", "A secret.")]
    rendered = render(source, chat, TOKENS)
    assert rendered.lost == (1,)
    assert [notice.level for notice in rendered.notices] == ["warning"]
    assert "leaves out messages of this chat: 2." in rendered.notices[0].message


def test_a_template_that_shows_no_message_names_all() -> None:
    rendered = render("Hello.", make_chat(["system", "user"]), TOKENS)
    assert rendered.lost == (0, 1)


def test_words_of_the_template_are_no_proof_that_a_message_is_in_the_prompt() -> None:
    source = "You are terse. {{ messages[-1].content }}"
    chat = [ChatMessage("system", "You are terse."), ChatMessage("user", "Hi")]
    rendered = render(source, chat, TOKENS)
    assert rendered.text.count("You are terse.") == 2


def test_thinking_that_a_template_leaves_out_is_no_loss() -> None:
    source = EACH + "{# <think> </think> #}"
    answer = ChatMessage("assistant", "<think>Hm.</think>Hello")
    chat = [ChatMessage("user", "Hi"), answer, ChatMessage("user", "More")]
    rendered = render(source, chat, TOKENS)
    assert rendered.text == "[user]Hi[assistant]Hello[user]More"
    assert rendered.notices == ()


def test_a_user_who_interrupts_a_call_is_answered_after_a_short_answer() -> None:
    chat = make_chat(["user", "call", "tool", "user"])
    chat[1] = replace(chat[1], content="")
    rendered = render(KINDS["needs alternation"], chat, TOKENS)
    assert rendered.text.endswith("[tool]zqx2text[assistant]Understood.[user]zqx3text")


def make_turns(n: int) -> list[ChatMessage]:
    return make_chat(["system", *["user", "assistant"] * n, "user"])


def test_the_next_turn_of_a_long_chat_is_of_a_known_shape() -> None:
    shapes = set()
    for n in range(7, 100):
        described = message_check.describe_shape(make_turns(n))
        shapes.add(message_check.collapse(described))

    (shape,) = shapes
    assert len(shape) < 16


SYSTEM_BEFORE_THE_QUESTION = (
    "{% for m in messages[1:] %}{% if loop.last %}{{ messages[0].content }}{% endif %}"
    + WRITE
    + "{% endfor %}"
)


@pytest.mark.parametrize("template", [EACH, SYSTEM_BEFORE_THE_QUESTION])
def test_a_chat_of_a_known_shape_is_rendered_once(
    monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    n_rendered = 0
    original = jinja_render._generate

    def count(*arguments: object) -> str:
        nonlocal n_rendered
        n_rendered += 1
        return original(*arguments)  # type: ignore[arg-type]

    source = template + "{# known shape #}"
    render(source, make_turns(7), TOKENS)
    monkeypatch.setattr(jinja_render, "_generate", count)
    render(source, make_turns(70), TOKENS)
    assert n_rendered == 1


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"city": "Rome"}', {"city": "Rome"}),
        ('{"city": "Ro', {"city": "Ro"}),
        ("{", {}),
        ("", {}),
        ("null", {}),
        ("[]", {"arguments": []}),
        ('"x"', {"arguments": "x"}),
        ("3", {"arguments": 3}),
        ("city: Rome", {"arguments": "city: Rome"}),
        ('{"a": 1} and more', {"arguments": '{"a": 1} and more'}),
    ],
)
def test_arguments_of_an_earlier_call_are_an_object(
    written: str, expected: dict[str, object]
) -> None:
    assert parse_arguments(written) == expected


def test_deeply_nested_arguments_are_rendered() -> None:
    call = ToolCall("call00001", "probe", '{"a":' * 100_000)
    chat = [ChatMessage("user", "Hi"), ChatMessage("assistant", "", tool_calls=(call,))]
    assert "[user]Hi" in render(EACH, chat, TOKENS).text
