"""Chat templates render as in transformers: the real ones of llama.cpp's source tree.

Needs the extra `templates`, and a source tree of llama.cpp in LLAMA_CPP_CHECKOUT.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, thinking_tags
from localspec.protocol.wire import ChatMessage
from tests.models.test_thinking_between_calls import ASKED, ASKED_AGAIN, TOOLS, TWICE

FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    ChatMessage("user", "Hi, who are you?"), ChatMessage("assistant", "I am a model."),
    ChatMessage("user", "Is 2 < 3?"), ChatMessage("assistant", 'Yes & "so on".'),
    ChatMessage("user", "Schön. And in 漢字?"),
    ChatMessage("assistant", "- 二\n- 三\n\n```\n2 < 3\n```"), ChatMessage("user", "Thanks."),
]  # fmt: skip


THINKING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")
THINKING_PARTS = {"mistralai-Ministral-3-14B-Reasoning-2512"}
"""Templates that take thinking as a part of the content."""


NUMBERS_CALLS = "moonshotai-Kimi-K2"
"""It numbers calls and not results, so results get its numbers from localspec."""


def think_of(thinking: str, template: str, content: str) -> dict[str, Any]:
    """Thinking as transformers' users give it to a template."""
    if template not in THINKING_PARTS:
        return dict.fromkeys(THINKING_KEYS, thinking)
    parts = [{"type": "thinking", "thinking": thinking}]
    if content:
        parts.append({"type": "text", "text": content})
    return {"content": parts}


@pytest.mark.long
@pytest.mark.skipif(
    not FOLDER.exists(), reason="LLAMA_CPP_CHECKOUT names no source tree"
)
def test_templates_render_as_in_transformers() -> None:
    """Where transformers raises, localspec need not; elsewhere the texts are equal."""
    theirs = pytest.importorskip(
        "transformers.utils.chat_template_utils"
    ).render_jinja_template
    n_equal = 0
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for case in (
            "plain",
            "system",
            "thinking on",
            "thinking off",
            "an earlier thought",
        ):
            ours = list(CHAT)
            if case == "system":
                ours.insert(0, ChatMessage("system", "Be brief."))
            chat = [{"role": m.role, "content": m.content} for m in ours]
            tags = thinking_tags.detect_tags(source)
            # transformers takes it apart
            if case == "an earlier thought" and tags is not None:
                close = thinking_tags.with_answer_prefix(tags).close
                said = ours[1].content
                answer = f"{tags.open}Let me see.{close}{said}"
                ours[1] = ChatMessage("assistant", answer)
                chat[1] |= think_of("Let me see.", path.stem, said)
            think = {"thinking on": True, "thinking off": False}.get(case)
            names = (
                ("enable_thinking", "thinking", "reasoning")
                if think is not None
                else ()
            )
            given: dict[str, Any] = TOKENS | dict.fromkeys(names, think)
            try:
                (expected,), _ = theirs(
                    [chat], chat_template=source, add_generation_prompt=True, **given
                )
            except Exception:  # templates raise what they like
                continue
            try:
                found = jinja_render.render(source, ours, TOKENS, think).text
            except UsageError as refused:
                found = refused.message
            assert found == expected, f"{path.name}, {case}"
            n_equal += 1
    assert n_equal > 300


def to_transformers(
    messages: Sequence[ChatMessage], template: str
) -> list[dict[str, Any]]:
    """A chat with calls, in the form of transformers' documentation."""
    chat = []
    for message in messages:
        body: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_call_id:
            body["tool_call_id"] = message.tool_call_id
        calls = []
        for call in message.tool_calls:
            function = {"name": call.name, "arguments": json.loads(call.arguments)}
            calls.append({"id": call.id, "type": "function", "function": function})
        if calls:
            body["tool_calls"] = calls
        if message.reasoning:
            body |= think_of(message.reasoning, template, message.content)
        chat.append(body)
    return chat


@pytest.mark.long
@pytest.mark.skipif(
    not FOLDER.exists(), reason="LLAMA_CPP_CHECKOUT names no source tree"
)
def test_thinking_between_calls_renders_as_in_transformers() -> None:
    """Where localspec changes roles because a template leaves texts out, it need not."""
    theirs = pytest.importorskip(
        "transformers.utils.chat_template_utils"
    ).render_jinja_template
    n_equal = 0
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for messages in (ASKED, TWICE, ASKED_AGAIN):
            try:
                (expected,), _ = theirs(
                    [to_transformers(messages, path.stem)],
                    tools=json.loads(TOOLS),
                    chat_template=source,
                    add_generation_prompt=True,
                    **TOKENS,
                )
            except Exception:  # templates raise what they like
                continue
            rendered = jinja_render.render(source, messages, TOKENS, tools=TOOLS)
            if rendered.notices or path.stem == NUMBERS_CALLS:
                continue
            assert rendered.text == expected, path.name
            n_equal += 1
    assert n_equal > 150
