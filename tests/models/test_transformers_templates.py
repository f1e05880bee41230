"""Chat templates render as in transformers: the real ones of llama.cpp's source tree.

Needs the extra `templates`, and a source tree of llama.cpp in LLAMA_CPP_CHECKOUT.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.models.chat_template import jinja_render, thinking_tags
from localspec.protocol.wire import ChatMessage

FOLDER = Path(os.environ.get("LLAMA_CPP_CHECKOUT", "/none")) / "models/templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    ChatMessage("user", "Hi, who are you?"), ChatMessage("assistant", "I am a model."),
    ChatMessage("user", "Is 2 < 3?"), ChatMessage("assistant", 'Yes & "so on".'),
    ChatMessage("user", "Schön. And in 漢字?"),
    ChatMessage("assistant", "- 二\n- 三\n\n```\n2 < 3\n```"), ChatMessage("user", "Thanks."),
]  # fmt: skip


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
                answer = f"{tags.open}Let me see.{close}{ours[1].content}"
                ours[1] = ChatMessage("assistant", answer)
                chat[1] |= {"reasoning_content": "Let me see."}
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
