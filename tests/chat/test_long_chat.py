"""Many turns: each evaluates only its new tokens, and memory stays constant."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.chat.context_window import AnswerGenerator, RequestOptions
from localspec.chat.conversation import Conversation
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.protocol.events import Event, Notice
from localspec.protocol.wire import SamplingParams
from tests.chat.saved_chats import add_events
from tests.chat.test_context_window import InProcess
from tests.support import tinygguf
from tests.support.long_cases import often
from tests.support.sessions import SETTINGS, Said, folded, loaded
from tests.support.tinygguf import BOS, Model
from tests.support.zoo import Zoo

TURNS = 200
ANSWER = 9


def ask(
    engine: InProcess, conversation: Conversation, how: RequestOptions
) -> tuple[Said, list[Event]]:
    conversation.ask("and then?")
    events = [delta.event for delta in AnswerGenerator(engine, conversation, how).stream()]
    add_events(conversation, events)
    return folded(events), events


def how_of(n_ctx: int, spec: str) -> RequestOptions:
    settings = ChatSettings(
        SamplingParams(temperature=0), max_tokens=ANSWER, spec=spec, overflow="drop"
    )
    return RequestOptions(settings, LoadedModel(n_ctx, "chatml", template_override="chatml"))


MAKES = {"attention": tinygguf.llama, "hybrid": tinygguf.lfm2}


@pytest.mark.parametrize("make", often(MAKES, ("attention",)))
def test_no_turn_reads_more_than_its_own(make: Callable[[], Model], tmp_path: Path) -> None:
    n_ctx, model = 4096, make()
    model.keys["context_length"] = n_ctx
    model.tensors["output.weight"][:BOS] = model.tensors["output.weight"][BOS] = 0  # no text
    path = model.write(tmp_path / "long.gguf")
    with loaded(path, settings=replace(SETTINGS, n_ctx=n_ctx)) as session:
        engine, conversation = InProcess(session), Conversation(3)
        how = replace(how_of(n_ctx, "lookup"), loaded=LoadedModel(n_ctx))  # one growing text
        unread, before = [], 0
        for _ in range(TURNS // 3):
            said, _ = ask(engine, conversation, how)
            known = said.totals["prompt_tokens"]
            unread.append(known - said.totals["reused_tokens"])
            assert unread[-1] == known - max(0, before - 1), "all but the last drawn token"
            before = known + len(said.ids)
        assert len(set(unread[1:])) <= 2
        assert before > TURNS // 3 * ANSWER


@pytest.mark.long
def test_memory_is_steady_where_old_turns_are_left_out(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"], replace(SETTINGS, n_ctx=1024)) as session:
        engine, conversation, how = InProcess(session), Conversation(3), how_of(1024, "auto")
        used, cuts, whole = [], 0, 0
        for turn in range(TURNS):
            said, events = ask(engine, conversation, how)
            engine.asked.clear()
            assert said.reason == "length"
            cuts += sum(isinstance(event, Notice) for event in events)
            whole += said.totals["reused_tokens"] < said.totals["prompt_tokens"] // 2
            if turn % 50 == 49:
                gc.collect()
                used.append(psutil.Process().memory_info().rss)
        assert 10 < cuts < TURNS // 3, "a quarter is freed at once, so that it happens seldom"
        assert whole <= cuts + TURNS // 20, "hardly else most of it is read again"
    assert used[-1] - used[0] < 8_000_000
