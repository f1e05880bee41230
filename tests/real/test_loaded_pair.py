"""The published files: template, head, memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine_process.client import EngineProcess
from localspec.machine import memory_probe
from localspec.machine.device import HOST
from localspec.models.chat_template import jinja_render
from localspec.models.gguf import reader
from localspec.protocol.wire import ChatMessage, LoadCommand
from tests.real import chats
from tests.real.conftest import ROOMY
from tests.support import shapes
from tests.support.sessions import loaded

pytestmark = pytest.mark.long
RENDERED = Path(__file__).with_name("rendered.json")
"""Chats rendered by transformers 5.23, as tests/models/test_transformers_templates.py
does.
"""
MIN_ACCEPTED = 0.1
"""Of the head's draft tokens, three a round, greedily."""


def test_its_template_gives_the_bytes_that_transformers_gives(smollm: Path) -> None:
    facts = reader.read(smollm)
    recorded: dict[str, Any] = json.loads(RENDERED.read_text("utf-8"))
    for case in recorded["models"]["smollm2"]:
        messages = [ChatMessage(**message) for message in case["messages"]]
        ours = jinja_render.render(facts.chat_template, messages, case["tokens"])
        assert ours.text == case["text"]
        assert ours.template == "own"


def test_the_bundled_head_was_trained_for_the_starter(smollm: Path, head: Path) -> None:
    drafted = 0
    accepted = 0
    with loaded(smollm, head) as session:
        for chat in chats.CHATS:
            said = chats.ask(
                session,
                chats.user(chat[0]),
                spec="eagle3",
                draft_length=3,
                max_tokens=32,
            )
            drafted += said.speculation["drafted"]
            accepted += said.speculation["accepted"]
    assert accepted / drafted >= MIN_ACCEPTED, f"{accepted} of {drafted}"


@pytest.mark.parametrize(
    ("fixture", "with_head", "error"),
    [("smollm", False, 0.01), ("smollm", True, 0.01), ("gemma", False, 0.04)],
)
def test_memory_is_what_was_foretold(
    fixture: str,
    with_head: bool,
    error: float,
    head: Path,
    request: pytest.FixtureRequest,
) -> None:
    """By llama.cpp's count; without it, within the error of the estimate."""
    path: Path = request.getfixturevalue(fixture)
    load = LoadCommand(str(path), target_settings=ROOMY, draft_settings=ROOMY)
    target = reader.read(path)
    draft = None
    if with_head:
        load = replace(load, draft=str(head))
        draft = reader.read(head)
    estimate = shapes.estimate_pair(load, target, draft, [])
    buffers = memory_probe.count_buffers(load, target, draft)
    counted = shapes.replace_counted(estimate, load, (target, draft), buffers)
    engine = EngineProcess()
    try:
        used = engine.load(load).memory["used"]
    finally:
        engine.close()
    assert used is not None
    foretold = counted.of(HOST).total + counted.output
    assert abs(foretold / used - 1) <= error, (foretold, used)
    assert abs(estimate.of(HOST).total + estimate.output - used) <= estimate.error
