"""What two texts share is read once, for every kind of memory and of draft."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from localspec.protocol.events import GenerationFinished, Prefill
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)
from localspec.spec import prefix_cache
from localspec.spec.prefix_cache import (
    BranchCache,
    ClientPrompts,
    ConversationSnapshots,
    PrefixCache,
)
from localspec.spec.protocols import Logits
from tests.support.fake_models import (
    BranchingModel,
    CheckpointModel,
    HistoryModel,
    StubbornModel,
)
from tests.support.long_cases import often
from tests.support.sessions import (
    GREEDY,
    SETTINGS,
    Said,
    folded,
    loaded,
    require_same_logits_at_every_width,
)
from tests.support.tinygguf import BOS, EOS
from tests.support.zoo import THOUGHT_TEXT, Zoo


def never() -> bool:
    return False


def read_all(reader: PrefixCache, text: Sequence[int]) -> list[float]:
    reader.rewind_to(text)
    for _ in reader.prefill(text, never):
        pass
    return [float(x) for x in reader.decode(text[reader.n_cached :], 1)[0]]


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)
KINDS = st.sampled_from([HistoryModel, StubbornModel, CheckpointModel])


@settings(derandomize=True, max_examples=80)
@given(st.lists(TOKENS, min_size=1, max_size=6), st.integers(1, 5), KINDS)
def test_whatever_was_read_before_the_logits_are_of_the_text(
    texts: list[list[int]], n_batch: int, kind: type[HistoryModel]
) -> None:
    model = kind(1, n_batch=n_batch)
    save_checkpoint = None
    if isinstance(model, CheckpointModel):
        save_checkpoint = model.save_checkpoint
    reader = PrefixCache(model, save_checkpoint)
    for text in texts:
        logits = read_all(reader, text)
        assert model.memory == text
        assert reader.n_cached == len(text)
        assert logits == model.row(text).tolist()


@pytest.mark.parametrize("n_batch", [16, 512])
def test_texts_that_part_after_a_long_beginning_share_it_from_the_third_on(
    n_batch: int,
) -> None:
    """The second finds checkpoints of batches, the third the place where both parted."""
    model = CheckpointModel(1, n_batch=n_batch, n_ctx=1024)
    cache = PrefixCache(model, model.save_checkpoint)
    beginning = [1] * 500
    kept: list[int] = []
    for last in (2, 3, 2, 4, 3):
        text = [*beginning, *[last] * 20]

        kept.append(cache.rewind_to(text))
        for _ in cache.prefill(text, never):
            pass
        logits = cache.decode(text[cache.n_cached :], 1)

        assert logits[0].tolist() == model.row(text).tolist()
    second = 256 if n_batch == 16 else 0
    assert kept == [0, second, 500, 500, 500]


def test_a_long_prompt_has_few_checkpoints() -> None:
    model = CheckpointModel(1, n_batch=16, n_ctx=4096)
    cache = PrefixCache(model, model.save_checkpoint)

    cache.rewind_to([1] * 4000)
    for _ in cache.prefill([1] * 4000, never):
        pass

    assert [n for n in model.checkpoints if n] == [
        *(16 * 2**n for n in range(8)),
        3992,
    ]


N_TOKENS = 6
"""Instead of MIN_TOKENS, for short texts."""
SIZE = {"n_vocab": 16, "n_ctx": 512, "n_batch": 512}


class Savable(BranchingModel):
    """Like a llama_context: a copy of its memory has a size by token."""

    fails = False

    def state_bytes(self) -> int:
        return 10 * self.n_past

    def save_state(self) -> Any:
        return tuple(self.memory)

    def restore_state(self, state: Any, n_past: int) -> bool:
        self.memory = [] if self.fails else list(state)
        return not self.fails


TEXTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()),
    min_size=2,
    max_size=20,
)
"""Turns: of which conversation, by how many tokens it grows, whether a restore fails.
"""


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
            # as overlap leaves them
            branch = cache.add_branch([9, 9]) if n_new % 2 else None
            if branch:
                cache.decode_branches([(branch, 9)])


def test_a_conversation_comes_back_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of conversations of some 20 tokens, in 10 bytes each by two models."""
    monkeypatch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
    for most, order, kept, n_bytes in (
        (
            9,
            (3, 4, 5, 3, 4, 5),
            (0, 0, 0, 20, 20, 20),
            21 + 21,
        ),  # the current one not twice
        (2, (3, 4, 5, 6, 5, 3), (0, 0, 0, 0, 20, 0), 20 + 21),  # the oldest went first
    ):
        caches = [BranchCache(Savable(seed, **SIZE)) for seed in (1, 2)]
        snapshots = ConversationSnapshots(caches, 2 * 10 * 21 * most)
        for n, (first, n_kept) in enumerate(zip(order, kept, strict=True)):
            text = [first] * 20 + [8] * order[:n].count(first)
            snapshots.switch_to(text)
            for cache in caches:
                assert cache.rewind_to(text) == n_kept
                cache.decode(text[n_kept:], 1)
        assert snapshots.n_bytes == 2 * 10 * n_bytes


TEXTLESS = (0, BOS, EOS)
ROOMY = replace(SETTINGS, n_ctx=1024)
NARROW = replace(ROOMY, swa_full=False)
PAIRS = {
    "attention": ("target", "cousin", ROOMY),
    "window": ("sliding", "sliding", ROOMY),
    "window-cut": ("sliding", None, NARROW),
    "hybrid": ("hybrid", "cousin", ROOMY),
    "hybrid-head": ("hybrid", "eagle3", ROOMY),
    "recurrent": ("recurrent", None, ROOMY),
    "head": ("deep", "eagle3", ROOMY),
    "block": ("deep", "dflash", ROOMY),
    "mtp": ("mimo", "mimo", ROOMY),
    "mtp-cut": ("mimo", "mimo", NARROW),
}
"""Target, draft, settings."""
QUICK_PAIRS = ("attention", "window-cut", "hybrid-head", "block", "mtp")
UNCUT = ("hybrid", "hybrid-head", "recurrent")
"""Memories that go back to marks only."""
REORDERED = ("window-cut", "mtp-cut")
ENDS = 2
"""A head may need the token before once more, for its state."""
TAIL = 8
"""Tokens of a prompt that stand behind its mark."""


@dataclass
class Chat:
    session: Session
    messages: list[ChatMessage] = field(default_factory=list)

    def ask(self, question: str, **more: Any) -> Said:
        """One more turn; the seed is that of the turn."""
        self.messages.append(ChatMessage("user", question))
        said = answered(self.session, self.messages, **more)
        self.messages.append(ChatMessage("assistant", said.text, tuple(said.ids)))
        return said


def answered(session: Session, messages: Sequence[ChatMessage], **more: Any) -> Said:
    request = GenerateCommand(
        messages=tuple(messages), template="chatml", sampling=GREEDY, max_tokens=40
    )
    return folded(session.generate(replace(request, **more)))


def opened(zoo: Zoo, kind: str) -> AbstractContextManager[Session]:
    """A session with one of PAIRS."""
    target, draft, settings = PAIRS[kind]
    draft_path = zoo[draft] if draft else None
    return loaded(zoo[target], draft_path, settings)


def fresh(zoo: Zoo, kind: str, messages: Sequence[ChatMessage], **more: Any) -> Said:
    with opened(zoo, kind) as session:
        return answered(session, messages, **more)


def unread(said: Said) -> int:
    return int(said.totals["prompt_tokens"] - said.totals["reused_tokens"])


@pytest.fixture(params=often(PAIRS.keys(), QUICK_PAIRS))
def chat(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[tuple[str, Chat]]:
    target, _, _ = PAIRS[request.param]
    require_same_logits_at_every_width(zoo[target])
    with opened(zoo, request.param) as session:
        yield request.param, Chat(session)


def test_a_turn_reads_its_new_tokens_only(zoo: Zoo, chat: tuple[str, Chat]) -> None:
    """New are the answer's last token, and what template and question add to it."""
    kind, talk = chat
    before = talk.ask("Tell me a story", spec="off")
    for question, spec in (
        ("more of it", "auto"),
        ("and then", "model"),
        ("more", "off"),
    ):
        _, draft, _ = PAIRS[kind]
        method = spec if draft else "lookup"
        said = talk.ask(question, spec=method)
        known = before.totals["prompt_tokens"] + len(before.ids) - 1
        assert said.totals["reused_tokens"] == known
        before = said
    again = fresh(zoo, kind, talk.messages[:-1], spec="off")
    assert again.totals["reused_tokens"] == 0
    assert said.ids == again.ids


def test_drawn_tokens_are_found_again(zoo: Zoo, chat: tuple[str, Chat]) -> None:
    """They are so hot that no tokenizer would write them, broken characters included."""
    kind, talk = chat
    hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    before = talk.ask("Tell me", sampling=hot)
    said = talk.ask("more", sampling=hot)
    whole = before.totals["prompt_tokens"] + len(before.ids) - 1
    textless = [i for i, token in enumerate(before.ids) if token in TEXTLESS]
    if not textless:
        assert said.totals["reused_tokens"] == whole
    elif kind not in UNCUT:  # from there on it is as the tokenizer writes it
        assert (
            said.totals["reused_tokens"]
            >= before.totals["prompt_tokens"] + textless[0] - 1
        )
    assert (
        said.ids == fresh(zoo, kind, talk.messages[:-1], sampling=hot, spec="off").ids
    )


def test_a_text_that_goes_on(zoo: Zoo, chat: tuple[str, Chat]) -> None:
    """Completion: the prompt is all that was said, as one text."""
    kind, talk = chat
    first = folded(
        talk.session.generate(GenerateCommand("the one ", GREEDY, max_tokens=40))
    )
    said = (
        ChatMessage("user", "the one "),
        ChatMessage("assistant", first.text, tuple(first.ids)),
    )
    request = GenerateCommand(
        "the one " + first.text + "\nand", GREEDY, 40, prior_messages=said
    )
    second = folded(talk.session.generate(request))
    assert second.totals["reused_tokens"] == first.totals["prompt_tokens"] + 39
    counted = talk.session.count(CountCommand(request.text, prior_messages=said)).tokens
    assert counted == second.totals["prompt_tokens"]
    with opened(zoo, kind) as session:
        assert folded(session.generate(request)).ids == second.ids


def test_another_question_or_another_answer(zoo: Zoo, chat: tuple[str, Chat]) -> None:
    """The last answer once more, and an edit of each earlier turn."""
    kind, talk = chat
    before = [
        talk.ask(question) for question in ("Tell me a story", "more of it", "and then")
    ]
    warm = SamplingParams(temperature=0.8, seed=4)
    said = answered(talk.session, talk.messages[:-1], sampling=warm)
    assert (
        said.ids == fresh(zoo, kind, talk.messages[:-1], sampling=warm, spec="off").ids
    )
    # What cannot be cut goes back to its checkpoint before the prompt's end.
    most_unread = TAIL if kind in UNCUT else ENDS
    assert unread(said) <= most_unread
    for turn in (1, 0):
        edited = [*talk.messages[: 2 * turn], ChatMessage("user", "another one")]
        said = answered(talk.session, edited)
        if turn:  # all up to what was edited is known
            known = before[0].totals["prompt_tokens"] + len(before[0].ids) - 1
            assert said.totals["reused_tokens"] > known - ENDS
        if kind not in REORDERED:  # see the next test
            assert said.ids == fresh(zoo, kind, edited, spec="off").ids
            assert answered(talk.session, edited).ids == said.ids, (
                "and the memory is sound"
            )


@pytest.mark.parametrize("kind", PAIRS)
def test_questions_after_one_long_beginning_read_it_once(zoo: Zoo, kind: str) -> None:
    """As agents ask: the same instructions each time, and another short question."""
    instructions = ChatMessage("system", "the one and the other " * 20)
    with opened(zoo, kind) as session:
        unread_tokens: list[int] = []
        for question in ("one", "the other", "one", "more of it", "the other"):
            messages = (instructions, ChatMessage("user", question))
            said = answered(session, messages, max_tokens=8)
            unread_tokens.append(unread(said))
            if kind not in REORDERED:
                same = fresh(zoo, kind, messages, spec="off", max_tokens=8)
                assert said.ids == same.ids
    n_own = 45  # Tokens of a question and of the template around it.
    assert max(unread_tokens[2:]) <= n_own + prefix_cache._MIN_SHARED_LOST
    assert unread_tokens[0] > 300


@pytest.mark.parametrize("kind", ["window-cut", "mtp-cut", "window", "hybrid"])
def test_going_back_and_forth_loses_nothing(zoo: Zoo, kind: str) -> None:
    """A cut window puts tokens elsewhere: the same sums, but in another order."""
    target, _, settings = PAIRS[kind]
    rng = np.random.default_rng(1)
    text = [1]
    one, other = (
        LlamaContext(zoo[target], ModelRole(settings, 17, 16)) for _ in range(2)
    )
    with closing(one), closing(other):
        save_checkpoint = one.save_checkpoint if one.needs_checkpoints else None
        used = PrefixCache(one, save_checkpoint)
        for _ in range(60):
            if rng.random() < 0.5:
                text = text[: int(rng.integers(1, len(text) + 1))]
            text = text[:900] + [
                int(i) for i in rng.integers(3, 300, rng.integers(1, 80))
            ]
            other.truncate(0)
            rows = [last_row(reader, text) for reader in (used, PrefixCache(other))]
            assert np.abs(rows[0] - rows[1]).max() < 0.1 * rows[1].std()


def last_row(reader: PrefixCache, text: list[int]) -> Logits:
    reader.rewind_to(text)
    for _ in reader.prefill(text, lambda: False):
        pass
    return reader.decode(text[reader.n_cached :], 1).copy()


def test_a_template_that_drops_thinking(zoo: Zoo) -> None:
    """What was thought is not read again, and what was said is read as it stands."""
    with loaded(zoo["thinker"], zoo["thinker"], ROOMY) as session:
        talk = Chat(session)
        first = talk.ask("Hi?", template=None)
        second = talk.ask("Hi again?", template=None)
        assert second.text == first.text == THOUGHT_TEXT
        known = session.count(CountCommand(messages=tuple(talk.messages[:1]))).tokens
        assert second.totals["reused_tokens"] == known
        third = talk.ask("And again?", template=None)
        assert third.text == THOUGHT_TEXT
        assert third.totals["reused_tokens"] == second.totals["prompt_tokens"]


def test_a_long_prompt_shows_how_far_it_is_and_stops_at_once(
    zoo: Zoo, chat: tuple[str, Chat]
) -> None:
    kind, talk = chat
    talk.ask("Tell me a story")
    question = ChatMessage("user", "word " * 60)
    request = GenerateCommand(
        messages=(*talk.messages, question),
        template="chatml",
        sampling=GREEDY,
        max_tokens=9,
    )
    done = [
        event for event in talk.session.generate(request) if isinstance(event, Prefill)
    ]
    steps = [b.done - a.done for a, b in pairwise(done)]
    assert steps
    assert set(steps[:-1]) == {ROOMY.n_ubatch} and steps[-1] <= ROOMY.n_ubatch
    # so that it must be read again
    talk.messages[-1:] = [ChatMessage("assistant", "Once.")]
    request = replace(request, messages=(*talk.messages, question))
    events = []
    for event in talk.session.generate(request):
        events.append(event)
        if isinstance(event, Prefill) and event.done > event.reused:
            talk.session.stop()
    assert isinstance(events[-1], GenerationFinished)
    assert events[-1].reason == "cancelled"
    assert events[-1].totals["timings"]["first_token_ms"] is None
    read = [event for event in events if isinstance(event, Prefill)]
    assert len(read) == 2
    said = answered(talk.session, request.messages)
    assert said.totals["reused_tokens"] >= read[-1].done - 1
    assert said.ids == fresh(zoo, kind, request.messages, spec="off").ids


A = "the one " * 80
B = "and so on, " * 60


@pytest.mark.parametrize(
    "kind", often(PAIRS.keys(), ("attention", "window", "head", "hybrid"))
)
def test_two_conversations_by_turns(zoo: Zoo, kind: str) -> None:
    """Each reads only what is new, and says what it says alone, drafts included."""
    target, draft, settings = PAIRS[kind]
    path = str(zoo[draft]) if draft else None
    load = LoadCommand(str(zoo[target]), path, settings, settings)
    sessions = [
        Session(replace(load, snapshot_bytes=n_bytes)) for n_bytes in (2**30, 0)
    ]
    with closing(sessions[0]), closing(sessions[1]):
        for prompt, spec in (
            (A, "auto"),
            (B, "model"),
            (A + "x", "auto"),
            (B + "x", "model"),
        ):
            method = spec if path else "lookup"
            request = GenerateCommand(prompt, GREEDY, 24, spec=method)
            said, alone = (folded(session.generate(request)) for session in sessions)
            assert said.ids == alone.ids
            if prompt.endswith("x"):
                assert unread(said) < 40 < unread(alone)
                if method == "model":
                    assert said.speculation["drafted"] > 0


SHORT_TEXT = st.lists(st.integers(0, 2), max_size=8)


@given(
    sent=st.lists(st.tuples(st.sampled_from("ab"), SHORT_TEXT), max_size=8),
    text=SHORT_TEXT,
    data=st.data(),
)
def test_a_client_knows_the_beginnings_of_its_own_texts(
    sent: list[tuple[str, list[int]]], text: list[int], data: st.DataObject
) -> None:
    n_reused = data.draw(st.integers(0, len(text)))
    prompts = ClientPrompts()
    for client, tokens in sent:
        prompts.remember(client, tokens)

    known = prompts.count_known("a", text, n_reused)

    own = [tokens for client, tokens in sent if client == "a"]
    beginnings = [n for n in range(n_reused + 1) if any(t[:n] == text[:n] for t in own)]
    assert known == max(beginnings, default=0)


def test_of_the_texts_of_clients_the_oldest_are_forgotten() -> None:
    prompts = ClientPrompts(max_tokens=5)
    prompts.remember("a", [1, 2, 3])
    prompts.remember("a", [1, 2, 3, 4])  # In place of the first.
    assert prompts.count_known("a", [1, 2, 3, 4], 4) == 4

    prompts.remember("b", [1, 2])

    assert prompts.count_known("a", [1, 2, 3, 4], 4) == 0
    assert prompts.count_known("b", [1, 2], 2) == 2


def test_who_is_no_client_knows_all() -> None:
    assert ClientPrompts().count_known("", [1, 2, 3], 2) == 2
