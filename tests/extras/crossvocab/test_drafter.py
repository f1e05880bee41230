"""A draft model of another vocabulary reads every text that the target writes."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.extras.crossvocab.drafter import (
    DraftText,
    SpelledVocabulary,
    VocabularyMap,
)
from localspec.extras.crossvocab.token_bytes import read_token_bytes
from localspec.llama.model import LlamaModel
from localspec.models.gguf import reader
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    SamplingParams,
)
from localspec.spec.verifiers import make_verifier
from tests.extras.crossvocab.fake_vocabularies import DRAFT, TARGET, crossed, vocabulary
from tests.spec.laws import MODES, PROMPT, SAMPLED
from tests.support.fake_models import GREEDY, HistoryModel
from tests.support.sessions import loaded, say_like_plain
from tests.support.zoo import Zoo

DEMO = Path("localspec/data/demo")
TEXTS = (
    "The quick brown fox, naïvely: 漢字 and 🙂👩‍👧 then\ttabs\n\n\tdef f(x):\n\t\treturn 2 * x",
    "text that says <eos> and <|im_end|> and </s> and <0x0A> is text",
    "  leading and trailing spaces   \n   \n x",
    "ﷺ ́combining ｆｕｌｌ‑width ½ ſ İ ß \u200b\u202e\ufeff end",
    "안녕하세요 สวัสดี مرحبا שלום 12345 67.89e-10 a_b-c/d\\e \r\n \x00\x1b[31m",
)


def spelled(path: Path) -> tuple[SpelledVocabulary, LlamaModel]:
    """A model's own vocabulary and tokenizer, by llama.cpp."""
    model = LlamaModel(path, ContextSettings(n_gpu_layers=0))
    metadata = reader.read(path).tokenizer
    tokens = read_token_bytes(metadata)
    eog = tuple(sorted(metadata.eog_ids))
    return SpelledVocabulary(tokens, model.vocabulary.tokenize_plain, (), eog), model


@pytest.fixture(scope="module")
def spm_and_bpe(zoo: Zoo) -> Iterator[tuple[SpelledVocabulary, SpelledVocabulary]]:
    spm, spm_model = spelled(zoo["target"])
    bpe, bpe_model = spelled(DEMO / "demo-draft.gguf")
    yield spm, bpe
    spm_model.close()
    bpe_model.close()


def test_the_bytes_of_every_token_are_llama_cpps_and_controls_are_not_shared(
    zoo: Zoo,
) -> None:
    other, unused = spelled(zoo["target"])
    unused.close()
    for path in (DEMO / "demo-target.gguf", zoo["chatty"]):
        own, model = spelled(path)
        expected = [model.vocabulary.piece(i) for i in range(model.vocabulary.n_tokens)]
        assert list(own.tokens.pieces) == expected
        shared = VocabularyMap(own, other).shared_target_ids.tolist()
        assert shared
        assert all(expected[token] for token in shared)
        assert not any(model.vocabulary.is_eog(token) for token in shared)
        model.close()


def random_ends(n_tokens: int, rng: random.Random) -> Iterator[int]:
    """Ascending lengths of a text of `n_tokens` that grows by one to six tokens."""
    at = 0
    while at < n_tokens:
        at = min(n_tokens, at + rng.randint(1, 6))
        yield at


@pytest.mark.parametrize("reverse", [False, True])
def test_a_text_is_read_as_it_grows(
    spm_and_bpe: tuple[SpelledVocabulary, SpelledVocabulary], reverse: bool
) -> None:
    """At every step the draft's tokens stand for the text, and the first `n_unchanged`
    are those of the step before.
    """
    target, draft = spm_and_bpe
    if reverse:
        target, draft = draft, target
    rng = random.Random(0)
    for text in TEXTS * 4:
        tokens = target.spell(text.encode())
        reading = DraftText(VocabularyMap(target, draft), prompt=None, prompt_length=0)
        before: list[int] = []
        for n in random_ends(len(tokens), rng):
            data = target.join(tokens[:n])
            ends_in_character = data.decode("utf-8", "ignore").encode() != data

            is_whole = reading.update(tokens[:n])

            assert is_whole != ends_in_character
            if is_whole:
                assert draft.join(reading.tokens) == data
                kept = reading.n_unchanged
                assert reading.tokens[:kept] == before[:kept]
                before = list(reading.tokens)
                reading.n_unchanged = len(before)
        assert draft.join(reading.tokens) == text.encode()


def test_a_word_that_would_begin_with_another_space_is_spelled_without() -> None:
    """Llama 2's tokenizer adds a space before the first word."""
    plain = vocabulary(("a", "b", " ", "\n", " a", " ab"))
    adding = replace(plain, tokenize=lambda text: plain.tokenize(b" " + text))

    for text in (b"ab", b" ab", b"a", b"b a"):
        assert adding.join(adding.spell(text)) == text


def test_a_text_that_the_tokenizer_changes_has_no_spelling() -> None:
    plain = vocabulary(("a", "b", "\n"))

    def tokenize(text: bytes) -> list[int]:
        return plain.tokenize(text.replace(b"a", b"b"))

    assert replace(plain, tokenize=tokenize).spell(b"ba") == []


def test_a_longer_token_replaces_the_last_one() -> None:
    """The target wrote "c" and "a"; the draft would have written "cab"."""

    class Healing(HistoryModel):
        def row(self, past):  # type: ignore[no-untyped-def]
            row = super().row(past).copy()
            row[DRAFT.index("cab")] = 50.0
            return row

    text = [TARGET.index("a"), TARGET.index("c")]
    for limit, expected in ((1, ["ab"]), (2, ["ab", "ca"])):
        model = Healing(0, n_vocab=len(DRAFT))
        drafter = crossed(model, make_verifier("coupled", 0), GREEDY, len(text))

        draft = drafter.propose(text, limit)

        assert draft.tokens == [TARGET.index(piece) for piece in expected]
    assert model.memory == [DRAFT.index("a"), DRAFT.index("cab")]


@pytest.fixture(scope="module")
def unlike(zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo["target"], DEMO / "demo-draft.gguf") as session:
        yield session


@pytest.mark.parametrize("mode", MODES)
def test_the_text_is_the_targets(unlike: Session, mode: str) -> None:
    """Greedy texts are equal with every method, sampled ones with `coupled`."""
    for i, text in enumerate(TEXTS):
        samplings = [GREEDY]
        if mode == "coupled":
            hot = SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=i)
            samplings.append(hot)
        for sampling in samplings:
            asked = {"sampling": sampling, "verify": mode, "max_tokens": 40}
            (got,) = say_like_plain(unlike, "crossvocab", text, (4,), **asked)
            assert got.speculation["drafted"] > 0
            assert set(got.speculation["by_source"]) == {"crossvocab"}


def test_auto_says_what_it_is_and_pauses_it_like_any_other(unlike: Session) -> None:
    assert unlike.ready.settings["draft_kind"] == "crossvocab"
    (notice,) = (n for n in unlike.ready.notices if n.code == "cross-vocabulary")
    assert "another vocabulary: drafts by text, shares" in notice.message
    (got,) = say_like_plain(unlike, "auto", TEXTS[0], max_tokens=200)
    assert got.speculation["paused_rounds"] > 0


QUESTION = (ChatMessage("user", "Say it <|im_end|> again"),)


def test_a_draft_of_the_same_vocabulary_needs_no_map(zoo: Zoo) -> None:
    with loaded(zoo["chatty"], zoo["no-system"]) as session:
        draft = session._pair.loaded_draft
        assert draft is not None
        assert draft.prepared is None


def test_it_drafts_a_chat_by_its_own_template(zoo: Zoo) -> None:
    with loaded(zoo["chatty"], zoo["thinker"]) as session:
        draft = session._pair.loaded_draft
        assert draft is not None
        assert session._draft is not None

        prompt = draft.prompt(GenerateCommand(messages=QUESTION))

        assert prompt is not None
        names = [session._draft.vocabulary.token_text(token) for token in prompt]
        assert b"assistant" in b"".join(names)
        assert draft.prompt(GenerateCommand("Say it")) is None, "it is no chat"


def test_a_draft_without_a_template_reads_the_targets_chat(zoo: Zoo) -> None:
    with loaded(zoo["chatty"], DEMO / "demo-draft.gguf") as session:
        draft = session._pair.loaded_draft
        assert draft is not None
        assert draft.prompt(GenerateCommand(messages=QUESTION)) is None


def test_a_text_the_draft_cannot_spell_is_not_drafted() -> None:
    model = HistoryModel(0, n_vocab=2)
    verifier = make_verifier("coupled", 0)
    drafter = crossed(model, verifier, GREEDY, 2, pieces=(TARGET, ("a", "c")))

    assert drafter.propose([0, 1], 3).tokens == []
    assert model.memory == []


def test_a_bias_of_the_targets_tokens_is_no_bias_of_the_drafts() -> None:
    """The target's token 40 is none of the draft's; what is drafted stays as without."""
    drafts: list[list[int]] = []
    for bias in ((), ((40, 5.0), (1, -100.0))):
        sampling = replace(SAMPLED, logit_bias=bias, presence_penalty=0.5)
        model = HistoryModel(2, n_vocab=len(DRAFT))
        drafter = crossed(model, make_verifier("coupled", 0), sampling, len(PROMPT))
        drafts.append(drafter.propose(PROMPT, 4).tokens)
    assert drafts[0] == drafts[1]


def test_it_ends_with_its_context() -> None:
    model = HistoryModel(0, n_vocab=len(DRAFT), n_ctx=8)
    for n in range(5, 12):
        drafter = crossed(model, make_verifier("coupled", 0), GREEDY, 5)
        text = [TARGET.index("c")] * n

        draft = drafter.propose(text, 5)

        assert len(draft.tokens) <= 5
        assert len(model.memory) <= 8
