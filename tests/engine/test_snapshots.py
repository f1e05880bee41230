"""Conversations in RAM: one that comes back is not read again, and answers as from fresh."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine import prefix_cache
from localspec.engine.prefix_cache import BranchCache, ConversationSnapshots
from localspec.engine.session import Session
from localspec.protocol.wire import GenerateCommand, LoadCommand
from tests.engine.test_reuse import KINDS, unread
from tests.fakes import BranchingModel
from tests.sessions import GREEDY, Said, folded
from tests.support.zoo import Zoo

N_TOKENS = 6
"""Instead of MIN_TOKENS, for short texts."""


SIZE = {"n_vocab": 16, "n_ctx": 512, "n_batch": 512}


class Savable(BranchingModel):
    """As a llama_context: a copy of its memory has a size by token."""

    fails = False

    def state_bytes(self) -> int:
        return 10 * self.n_past

    def save_state(self) -> Any:
        return tuple(self.memory)

    def restore_state(self, state: Any, n_past: int) -> bool:
        self.memory = [] if self.fails else list(state)
        return not self.fails


TEXTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), min_size=2, max_size=20
)
"""Turns: of which conversation, by how many tokens it grows, whether a restore fails."""


@given(TEXTS, st.integers(0, 900))
def test_whoever_comes_back_the_memory_is_that_of_the_text(
    turns: list[tuple[int, int, bool]], max_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
        model = Savable(1, **SIZE)
        cache = BranchCache(model)
        snapshots = ConversationSnapshots([cache], max_bytes)
        texts = [[first, first] for first in (3, 4, 5, 6)]
        for conversation, n_new, model.fails in turns:
            text = texts[conversation]
            text += [7 + conversation] * n_new
            snapshots.switch_to(text)
            assert snapshots.n_bytes <= max_bytes
            kept = cache.rewind_to(text)
            cache.decode(text[kept:], 1)
            assert model.memory == text
            branch = cache.add_branch([9, 9]) if n_new % 2 else None  # as overlap leaves them
            if branch:
                cache.decode_branches([(branch, 9)])


def test_a_conversation_comes_back_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
    caches = [BranchCache(Savable(seed, **SIZE)) for seed in (1, 2)]
    snapshots = ConversationSnapshots(caches, 10_000)
    texts = [[first] * 20 for first in (3, 4, 5)]
    for text in (*texts, texts[0] + [8], texts[1] + [8], texts[2] + [8]):
        snapshots.switch_to(text)
        for cache in caches:
            kept = cache.rewind_to(text)
            assert (kept == 20) == (len(text) == 21)
            cache.decode(text[kept:], 1)
    assert snapshots.n_bytes == 2 * 2 * 10 * 21, "the current one is not kept twice"


# --- real contexts ----------------------------------------------------------------------------


def answer(session: Session, prompt: str, spec: str) -> Said:
    return folded(session.generate(GenerateCommand(prompt, GREEDY, 24, spec=spec)))


A, B = "the one " * 80, "and so on, " * 60


@pytest.mark.parametrize("spec", ["auto", "model", "off"])
@pytest.mark.parametrize("kind", ["attention", "window", "head", "hybrid"])
def test_two_conversations_by_turns(zoo: Zoo, kind: str, spec: str) -> None:
    target, draft, settings = KINDS[kind]
    paths = str(zoo[target]), str(zoo[draft]) if draft else None
    load = LoadCommand(*paths, settings, settings, snapshot_bytes=2**30)
    alone = Session(LoadCommand(*paths, settings, settings))
    session = Session(load)
    try:
        answer(session, A, spec)
        answer(session, B, spec)
        for prompt in (A + "more", B + "more", A + "more again"):
            said = answer(session, prompt, spec)
            assert said.ids == answer(alone, prompt, spec).ids
            is_kept = kind == "attention"  # the others need more than a copy
            assert (unread(said) < 40) == is_kept
    finally:
        session.close()
        alone.close()
