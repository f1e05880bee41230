"""What a published model must be like here; a planted fault fails one of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localspec.models.chat_template import jinja_render
from localspec.models.gguf import reader
from localspec.protocol.wire import ChatMessage
from tests.real import chats
from tests.support.sessions import loaded

RENDERED = Path(__file__).with_name("rendered.json")
"""Chats rendered by transformers 5.23, as tests/models/test_transformers_templates.py does."""
END_TOKEN, END_TEXT = 2, b"<|im_end|>"
MIN_ACCEPTED = 0.1
"""Of the head's draft tokens, three a round, greedily."""


def check_template(path: Path) -> None:
    """The file's template gives the bytes that transformers gives."""
    facts = reader.read(path)
    recorded: dict[str, Any] = json.loads(RENDERED.read_text("utf-8"))
    for case in recorded["models"]["smollm2"]:
        messages = [ChatMessage(**message) for message in case["messages"]]
        ours = jinja_render.render(facts.chat_template, messages, case["tokens"])
        assert (ours.text, ours.template) == (case["text"], "own")


def check_end_token(path: Path) -> None:
    """The file's end token is the template's, and an answer ends with it, unseen."""
    facts = reader.read(path)
    assert facts.tokenizer.eos == END_TOKEN
    assert facts.tokenizer.token_text(END_TOKEN) == END_TEXT
    with loaded(path) as session:
        question = chats.user("What is the capital of France? Answer in one short sentence.")
        said = chats.ask(session, question, spec="off", max_tokens=60)
    assert said.reason == "eog"
    assert said.ids[-1] == END_TOKEN
    assert END_TEXT.decode() not in said.text


def check_head(target: Path, head: Path) -> None:
    """The head was trained for this target: it drafts some of what the target writes."""
    drafted = accepted = 0
    with loaded(target, head) as session:
        for chat in chats.CHATS:
            said = chats.ask(
                session, chats.user(chat[0]), spec="eagle3", draft_length=3, max_tokens=32
            )
            drafted += said.speculation["drafted"]
            accepted += said.speculation["accepted"]
    assert accepted / drafted >= MIN_ACCEPTED, f"{accepted} of {drafted}"
