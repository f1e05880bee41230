"""Thinking before a call is shown to the model again, for as long as its template says.

Families that think between the calls of one question need what they thought before: they
were trained so. After the next question most templates leave it out.
"""

import os
from pathlib import Path

import pytest

from localspec.models.chat_template import thinking_tags
from localspec.models.chat_template.jinja_render import render
from localspec.models.chat_template.tool_detection import detect_format
from localspec.protocol.wire import ChatMessage, ToolCall
from tests.support.tool_families import FAMILIES, ToolFamily

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"
FIRST = "I have to look at Rome."
SECOND = "Then at Oslo."
LAST = "Now I know."
TOOLS = (
    '[{"type": "function", "function": {"name": "look", "description": "Looks.", '
    '"parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]'
)
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def make_call(number: int, at: str = "Rome") -> ToolCall:
    return ToolCall(f"call{number:05}", "look", f'{{"at": "{at}"}}')


def thinks_and_calls(number: int, thinking: str, text: str = "") -> list[ChatMessage]:
    """A call, and its result."""
    call = make_call(number)
    answer = ChatMessage("assistant", text, tool_calls=(call,), reasoning=thinking)
    return [answer, ChatMessage("tool", f"result{number}", tool_call_id=call.id)]


ASKED = [ChatMessage("user", "Where is it sunny?"), *thinks_and_calls(1, FIRST)]
TWICE = [*ASKED, *thinks_and_calls(2, SECOND)]
ASKED_AGAIN = [
    *TWICE,
    ChatMessage("assistant", "In Rome.", reasoning=LAST),
    ChatMessage("user", "And now?"),
]


def prompt(source: str, messages: list[ChatMessage], think: bool | None = True) -> str:
    return render(source, messages, TOKENS, think, TOOLS).text


@families
def test_the_small_templates_have_the_formats_of_their_families(
    family: ToolFamily,
) -> None:
    assert detect_format(family.template, TOKENS) == family.tool_format
    assert thinking_tags.detect_tags(family.template) is not None


@families
def test_the_model_is_shown_its_thinking_before_each_call_of_a_question(
    family: ToolFamily,
) -> None:
    text = prompt(family.template, TWICE)

    assert text.count(FIRST) == 1
    assert text.count(SECOND) == 1
    assert text.index(FIRST) < text.index("result1") < text.index(SECOND)


@families
def test_the_next_question_ends_what_was_thought(family: ToolFamily) -> None:
    text = prompt(family.template, ASKED_AGAIN)

    assert "result2" in text
    for thought in (FIRST, SECOND, LAST):
        assert thought not in text


@families
def test_thinking_that_stands_in_the_answer_itself_is_shown_too(
    family: ToolFamily,
) -> None:
    """A chat keeps an answer as the model wrote it."""
    question, answer, result = ASKED
    written = ChatMessage(
        "assistant",
        f"{family.opening}{FIRST}{family.closing}",
        tool_calls=answer.tool_calls,
        starts_in_thinking=not family.opening,
    )

    text = prompt(family.template, [question, written, result])

    assert text == prompt(family.template, ASKED)


def test_text_between_thinking_and_a_call_is_not_lost_in_gpt_oss() -> None:
    """Its template takes only one of both."""
    source = FAMILIES["gpt-oss"].template
    first = [ChatMessage("user", "Q"), *thinks_and_calls(1, FIRST, "I look.")]
    later = [
        *first,
        ChatMessage("assistant", "Sunny."),
        ChatMessage("user", "And in Oslo?"),
        *thinks_and_calls(2, SECOND, "I look there, too."),
    ]

    asked = prompt(source, first)
    asked_again = prompt(source, later)

    assert f"{FIRST}\n\nI look.<|end|>" in asked
    assert FIRST not in asked_again
    assert "<|channel|>final<|message|>I look.<|end|>" in asked_again
    assert f"{SECOND}\n\nI look there, too.<|end|>" in asked_again


ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call') }}{% endif %}"
    "[{{ m.role }}]{{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.arguments | tojson }})"
    "{% endfor %}{% endfor %}"
)


def test_thinking_before_two_calls_is_shown_once() -> None:
    calls = (make_call(1, "Rome"), make_call(2, "Oslo"))
    answer = ChatMessage("assistant", "", tool_calls=calls, reasoning=FIRST)
    results = [ChatMessage("tool", call.id, tool_call_id=call.id) for call in calls]

    text = prompt(ONE_CALL, [ChatMessage("user", "Q"), answer, *results])

    assert text.count(FIRST) == 1
    assert "Rome" in text
    assert "Oslo" in text


@pytest.mark.parametrize(
    "key", ["reasoning_content", "thinking", "reasoning", "thought"]
)
def test_a_template_finds_thinking_under_the_name_that_it_reads(key: str) -> None:
    source = "{% for m in messages %}{{ m.content }}{{ m." + key + " }}{% endfor %}"

    assert FIRST in prompt(source, ASKED)


THINKING_PARTS = """{% for m in messages %}[{{ m.role }}]
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}
{%- if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}
{{- call.function.arguments | tojson }}{% endfor %}
{%- endfor %}"""
"""As Ministral's."""


def test_a_template_that_takes_thinking_as_a_part_of_the_content_gets_it_so() -> None:
    text = prompt(THINKING_PARTS, ASKED)

    assert f"[assistant][THINK]{FIRST}[/THINK][TOOL_CALLS]look" in text


def test_a_template_that_would_write_the_parts_as_a_list_gets_a_text() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

    text = prompt(source, ASKED)

    assert FIRST not in text
    assert "'type'" not in text


UNTIL_THE_NEXT_QUESTION = {
    *("GLM-4.6", "GLM-4.7-Flash", "Kimi-K2-Thinking", "LFM2.5-8B-A1B", "MiniMax-M2"),
    *("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-Qwen3-0.6B", "Qwen3.5-4B"),
    *("Reka-Edge", "StepFun3.5-Flash", "deepseek-ai-DeepSeek-V3.2"),
    *("google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it"),
    *("openai-gpt-oss-120b", "openbmb-MiniCPM5-1B", "upstage-Solar-Open-100B"),
}
ALWAYS = {
    *("Bielik-11B-v3.0-Instruct", "ByteDance-Seed-OSS", "Cohere2MoE", "Kimi-K3"),
    *("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "MiniMax-M3", "Spark2.5"),
    *("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
    *("inclusionai-ling-3.0-flash", "mistralai-Ministral-3-14B-Reasoning-2512"),
    *("muse-glimmer", "poolside-Laguna-S-2.1", "poolside-Laguna-XS-2.1"),
    *("poolside-Laguna-XS.2", "tencent-Hy3"),
}
"""llama.cpp's templates that show the thinking before calls, and for how long."""


@pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_CHECKOUT is not set")
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem
)
def test_the_real_templates_show_thinking_as_long_as_they_say(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    is_kept = path.stem in ALWAYS

    between = prompt(source, TWICE)
    afterwards = prompt(source, ASKED_AGAIN)

    for thought in (FIRST, SECOND):
        is_shown = is_kept or path.stem in UNTIL_THE_NEXT_QUESTION
        assert between.count(thought) == int(is_shown)
        assert afterwards.count(thought) == int(is_kept)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_CHECKOUT is not set")
def test_the_real_template_of_gpt_oss_keeps_text_beside_thinking() -> None:
    source = (FOLDER / "openai-gpt-oss-120b.jinja").read_text(encoding="utf-8")

    text = prompt(
        source, [ChatMessage("user", "Q"), *thinks_and_calls(1, FIRST, "I look.")]
    )

    assert f"{FIRST}\n\nI look.<|end|>" in text
