"""The places of pictures in a prompt: as given, and nowhere that a text says."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine.chat_prompt import PromptBuilder, reuse_answer_tokens
from localspec.engine.prompt_pictures import PictureTimer, make_thumbnail
from localspec.errors import UsageError
from localspec.llama.context import LlamaContext
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.models.pictures import PICTURE_MARK
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    PictureRef,
    PictureSpeed,
    ToolCall,
)
from tests.support import tinygguf
from tests.support.sessions import SETTINGS

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}: {{ m['content'] | trim }}"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)
REVERSED = TEMPLATE.replace("in messages", "in messages | reverse")
TWICE = TEMPLATE.replace(
    "| trim }}", "| trim }}{% if loop.last %} {{ m['content'] }}{% endif %}"
)
AS_JSON = TEMPLATE.replace("| trim", "| tojson")
AS_ASCII = TEMPLATE.replace("| trim", "| tojson(ensure_ascii=true)")
ONLY_LAST = TEMPLATE.replace("in messages", "in messages[-1:]")
ROWS = [[-2, -3, -3], [-4, -5], [-6]]
"""The ids of three pictures, each of another length."""


def picture(n: int) -> PictureRef:
    return PictureRef(f"/nowhere/{n}", f"{n:064x}")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaVocab]:
    made = tinygguf.llama(1)
    made.controls = ("<|turn|>",)
    made.words = (*made.words, *made.controls)
    made.template = TEMPLATE
    for name in ("token_embd.weight", "output.weight"):
        old = made.tensors[name]
        n_new = len(made.vocabulary()) - len(old)
        made.tensors[name] = np.concatenate([old, old[:n_new]])
    path: Path = made.write(tmp_path_factory.mktemp("pictures") / "model.gguf")
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as loaded:
        yield loaded.vocabulary


def read(tokens: Sequence[int], vocabulary: LlamaVocab) -> str:
    """The text of a prompt, in which ¹, ² and ³ are whole pictures."""
    text = b""
    at = 0
    while at < len(tokens):
        for rows, sign in zip(ROWS, "¹²³", strict=True):
            if tokens[at : at + len(rows)] == rows:
                text += sign.encode()
                at += len(rows)
                break
        else:
            token = tokens[at]
            assert token >= 0, "a row outside of its picture"
            text += vocabulary.piece(token) or vocabulary.token_text(token)
            at += 1
    return text.decode("utf-8", "replace").replace("<s>", "").replace("▁", " ")


def prompt(
    vocabulary: LlamaVocab, *messages: ChatMessage, template: str = TEMPLATE
) -> str:
    builder = PromptBuilder(vocabulary, template)
    built = builder.build_prompt(CountCommand(messages=messages))
    return read(builder.tokenize(built, ROWS), vocabulary)


def ask(text: str, *pictures: int, role: str = "user") -> ChatMessage:
    return ChatMessage(role, text, images=tuple(map(picture, pictures)))


def squeeze(text: str) -> str:
    """Without spaces: the tokenizer of these models puts one before each part."""
    return text.replace(" ", "")


M = PICTURE_MARK


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("what?", "¹²what?"),
        (f"{M}and{M}", "¹and²"),
        (f"a{M}b", "¹a²b"),
        (f"{M}a{M}b{M}c", "¹a²b\ufffdc"),
        (f"{M}{M}", "¹²"),
        (f"  {M} x {M}  ", "¹x²"),
        ("", "¹²"),
    ],
)
def test_a_picture_stands_at_its_mark_or_before_the_text(
    vocabulary: LlamaVocab, content: str, expected: str
) -> None:
    text = prompt(vocabulary, ask(content, 0, 1))

    assert squeeze(text) == f"<|turn|>user:{expected}<|turn|>assistant:"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATE, "<|turn|>user:¹one<|turn|>assistant:ok<|turn|>user:²two³"),
        (REVERSED, "<|turn|>user:²two³<|turn|>assistant:ok<|turn|>user:¹one"),
        (TWICE, "<|turn|>user:¹one<|turn|>assistant:ok<|turn|>user:²two³²two³"),
        (AS_JSON, '<|turn|>user:"¹one"<|turn|>assistant:"ok"<|turn|>user:"²two³"'),
        (AS_ASCII, '<|turn|>user:"¹one"<|turn|>assistant:"ok"<|turn|>user:"²two³"'),
        (
            ONLY_LAST,
            "<|turn|>user:User:\n¹one\n\nAssistant:\nok\n\nUser:\n²two³",
        ),
    ],
    ids=["in order", "reversed", "twice", "JSON", "ASCII", "only the last"],
)
def test_a_template_may_move_messages_but_not_exchange_their_pictures(
    vocabulary: LlamaVocab, template: str, expected: str
) -> None:
    text = prompt(
        vocabulary,
        ask("one", 0),
        ChatMessage("assistant", "ok"),
        ask(f"{M}two{M}", 1, 2),
        template=template,
    )

    assert squeeze(text) == f"{expected}<|turn|>assistant:"


def test_a_result_of_a_tool_may_have_a_picture(vocabulary: LlamaVocab) -> None:
    call = ToolCall("1", "screenshot", "{}")
    text = prompt(
        vocabulary,
        ask("look"),
        ChatMessage("assistant", "", tool_calls=(call,)),
        ChatMessage("tool", f"done{M}", tool_call_id="1", images=(picture(0),)),
    )

    assert "done¹" in squeeze(text)


MARKED = st.lists(
    st.sampled_from([M, f"{M}0_", "0_", "\\ufdd60_", "<|turn|>", "a", "\ufdd2", " "]),
    max_size=6,
).map("".join)


@given(MARKED, MARKED, MARKED)
@settings(max_examples=60, deadline=None)
def test_no_text_without_pictures_brings_one(
    vocabulary: LlamaVocab, system: str, question: str, answer: str
) -> None:
    builder = PromptBuilder(vocabulary, TEMPLATE)
    messages = (
        ChatMessage("system", system or "x"),
        ChatMessage("user", question or "x"),
        ChatMessage("assistant", answer or "x", reasoning=answer),
        ChatMessage("user", question or "x"),
    )

    built = builder.build_prompt(GenerateCommand(messages=messages, prefill=answer))

    assert min(builder.tokenize(built, ROWS)) >= 0


@given(MARKED, MARKED)
@settings(max_examples=60, deadline=None)
def test_other_texts_bring_no_picture_more_than_once(
    vocabulary: LlamaVocab, before: str, other: str
) -> None:
    """The caller of a message with pictures has removed marks from what was typed."""
    typed = before.replace(M, "\ufffd")

    text = prompt(
        vocabulary, ChatMessage("system", other or "x"), ask(f"{typed}{M}", 0)
    )

    assert text.count("¹") == 1


def test_a_draft_model_reads_the_text_without_pictures(vocabulary: LlamaVocab) -> None:
    builder = PromptBuilder(vocabulary, TEMPLATE)
    built = builder.build_prompt(CountCommand(messages=(ask(f"a{M}b", 0),)))

    text = read(builder.tokenize(built), vocabulary)

    assert squeeze(text) == "<|turn|>user:ab<|turn|>assistant:"


def test_the_prompt_begins_with_one_bos_also_before_a_picture(
    vocabulary: LlamaVocab,
) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    builder = PromptBuilder(vocabulary, template)

    for content in (M, f"a{M}", f"{M}a"):
        built = builder.build_prompt(CountCommand(messages=(ask(content, 0),)))
        tokens = builder.tokenize(built, ROWS)
        assert tokens[0] == tinygguf.BOS
        assert tokens.count(tinygguf.BOS) == 1


def test_a_text_to_continue_has_no_pictures(vocabulary: LlamaVocab) -> None:
    builder = PromptBuilder(vocabulary, TEMPLATE)
    command = CountCommand("hi", prior_messages=(ask("hi", 0),))

    with pytest.raises(UsageError, match="chat"):
        builder.build_prompt(command)


def test_an_answer_behind_a_picture_keeps_its_own_tokens(
    vocabulary: LlamaVocab,
) -> None:
    text = vocabulary.tokenize("the one ", add_special=False)
    own = [vocabulary.tokenize(letter, add_special=False)[-1] for letter in "the"]
    messages = (ask(f"{M}", 0), ChatMessage("assistant", "the one", tuple(own)))
    prompt_ids = [*ROWS[0], *text, *ROWS[1]]

    reused = reuse_answer_tokens(prompt_ids, messages, vocabulary)

    assert reused[:3] == ROWS[0]
    assert reused[-2:] == ROWS[1]
    assert read(reused, vocabulary) == read(prompt_ids, vocabulary)


# --- what is shown of a picture


def test_a_thumbnail_has_the_shape_and_the_colours_of_its_picture() -> None:
    pixels = np.zeros((600, 300, 3), np.uint8)
    pixels[:300] = (200, 10, 0)
    pixels[300:] = (0, 10, 200)

    thumbnail = make_thumbnail(pixels)

    assert (thumbnail.width, thumbnail.height) == (16, 32)
    rgb = np.frombuffer(base64.b64decode(thumbnail.rgb), np.uint8).reshape(32, 16, 3)
    assert (rgb[:16] == (200, 10, 0)).all()
    assert (rgb[16:] == (0, 10, 200)).all()


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (48, 32), (1, 9000), (9000, 1)])
def test_a_picture_of_any_size_has_a_thumbnail(size: tuple[int, int]) -> None:
    width, height = size

    thumbnail = make_thumbnail(np.full((height, width, 3), 7, np.uint8))

    assert 1 <= thumbnail.width <= min(width, 48)
    assert 1 <= thumbnail.height <= min(height, 32)
    rgb = base64.b64decode(thumbnail.rgb)
    assert rgb == bytes([7]) * (3 * thumbnail.width * thumbnail.height)


def test_the_expected_time_is_what_the_last_picture_took() -> None:
    timer = PictureTimer("a", 0.01)
    assert timer.expect(100) == 1.0

    timer.record(50, 1.0)

    assert timer.expect(100) == 2.0
    assert timer.measured == PictureSpeed("a", 20.0)
    assert PictureTimer("a", None).expect(100) is None


def test_what_earlier_runs_measured_holds_for_the_same_projector() -> None:
    measured = PictureSpeed("a", 20.0)

    assert PictureTimer("a", 0.01, measured=measured).expect(100) == 2.0
    assert PictureTimer("b", 0.01, measured=measured).expect(100) == 1.0
    assert PictureTimer("b", None, measured=measured).expect(100) is None
