"""Chat templates render as in transformers: the real ones of llama.cpp's source tree.

Needs the extra `templates`, and a source tree of llama.cpp in LLAMA_CPP_CHECKOUT.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, thinking_tags
from localspec.protocol.wire import ChatMessage

FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = (
    ChatMessage("user", "Hi, who are you?"), ChatMessage("assistant", "I am a model."),
    ChatMessage("user", "Is 2 < 3?"), ChatMessage("assistant", 'Yes & "so on".'),
    ChatMessage("user", "Schön. And in 漢字?"),
    ChatMessage("assistant", "- 二\n- 三\n\n```\n2 < 3\n```"), ChatMessage("user", "Thanks."),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    messages: tuple[ChatMessage, ...] = CHAT
    think: bool | None = None
    thought: bool = False  # Whether an earlier answer has a thinking part.


@pytest.mark.long
@pytest.mark.skipif(not FOLDER.exists(), reason="LLAMA_CPP_CHECKOUT names no source tree")
def test_templates_render_as_in_transformers() -> None:
    """Where transformers raises, localspec need not; elsewhere the texts are equal."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    n_equal = 0
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for case in (
            Case(),
            Case((ChatMessage("system", "Be brief."), *CHAT)),
            Case(think=True),
            Case(think=False),
            Case(thought=True),
        ):
            ours, theirs = messages_of(case, source)
            expected = render_with_transformers(source, theirs, case.think)
            if expected is None:
                continue
            try:
                found = jinja_render.render(source, ours, TOKENS, case.think).text
            except UsageError as refused:
                found = refused.message
            assert found == expected, f"{path.name}, {case}"
            n_equal += 1
    assert n_equal > 300


def messages_of(case: Case, source: str) -> tuple[list[ChatMessage], list[dict[str, str]]]:
    """The chat for localspec, and for transformers, which takes the thinking separately."""
    ours = list(case.messages)
    theirs = [{"role": m.role, "content": m.content} for m in ours]
    if case.thought and (tags := thinking_tags.detect_tags(source)) is not None:
        close = thinking_tags.with_answer_prefix(tags).close
        answer = f"{tags.open}Let me see.{close}{ours[1].content}"
        ours[1] = ChatMessage("assistant", answer)
        theirs[1] |= {"reasoning_content": "Let me see."}
    return ours, theirs


def render_with_transformers(
    source: str, messages: list[dict[str, str]], think: bool | None
) -> str | None:
    """None if the template raises."""
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

    names = ("enable_thinking", "thinking", "reasoning")
    given: dict[str, Any] = TOKENS | ({} if think is None else dict.fromkeys(names, think))
    try:
        texts, _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True, **given
        )
    except Exception:  # templates raise what they like
        return None
    return str(texts[0])
