"""Thinking parts: which markers a template uses, and how they are split off a streamed answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models.chat_template import jinja_render, thinking_tags
from localspec.models.chat_template.thinking_tags import (
    AnswerPart,
    ThinkingParser,
    merge_parts,
    split_thinking,
)
from localspec.protocol.wire import ChatMessage

HARMONY = "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}"


def test_a_templates_source_tells_its_markers() -> None:
    for source, markers in [
        ("{{ m.content.split('</think>')[-1] }}", ("<think>", "</think>")),
        ("[THINK]{{ t }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("<|channel>thought\n<channel|>", ("<|channel>thought\n", "<channel|>")),
        (HARMONY, ("<|channel|>analysis<|message|>", "<|end|>")),
        ("<|im_start|>{{ m.role }}", None),
    ]:
        assert thinking_tags.detect_tags(source) == markers


def test_a_template_without_markers_never_thinks() -> None:
    assert not thinking_tags.is_open("<think>", None)
    assert thinking_tags.separate_thinking("<think>a</think>b", None) == (None, "<think>a</think>b")


def test_what_stands_between_thinking_and_answer_belongs_to_neither() -> None:
    markers = thinking_tags.detect_tags(HARMONY)
    assert markers is not None
    shown = thinking_tags.with_answer_prefix(markers)
    assert shown.close == "<|end|><|start|>assistant<|channel|>final<|message|>"
    for begun, thought in ((f"{shown.open}hm{shown.close}", "hm"), (FINAL, None)):
        separated = thinking_tags.separate_thinking(f"{begun}Hello", markers)
        assert separated == (thought, "Hello")


MARKERS = ("<think>", "</think>")
PIECES = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "<", ">", " ", "\n", "a", "漢"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS, st.booleans(), st.data())
def test_any_chunking_gives_the_same_split(text: str, inside: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    splitter = ThinkingParser(MARKERS, inside)
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += splitter.feed(text[start:end])
    parts += splitter.flush()
    assert merge_parts(parts) == split_thinking(text, MARKERS, inside)


def test_parts() -> None:
    for text, inside, parts in [
        ("<think>a</think>b", False, [AnswerPart(True, "a"), AnswerPart(False, "b")]),
        ("\n<think>a", False, [AnswerPart(False, "\n"), AnswerPart(True, "a")]),
        ("Use <think>a</think>", False, [AnswerPart(False, "Use <think>a</think>")]),
        (
            "<think>a</think>b<think>c",
            False,
            [AnswerPart(True, "a"), AnswerPart(False, "b<think>c")],
        ),
        ("a</think>", False, [AnswerPart(False, "a</think>")]),
        ("<thin", False, [AnswerPart(False, "<thin")]),
    ]:
        assert list(split_thinking(text, MARKERS, inside)) == parts


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}[assistant]"
)


def test_the_template_is_given_thinking_apart() -> None:
    """Also thinking that was cut by the limit, and what a client sends back."""
    for message, rendered in [
        (ChatMessage("assistant", "cut off", starts_in_thinking=True), "<think>cut off</think>"),
        (ChatMessage("assistant", "a</think>b", starts_in_thinking=True), "<think>a</think>b"),
        (ChatMessage("assistant", "b", reasoning=" a\n"), "<think>a</think>b"),
        (ChatMessage("assistant", "<think>cut off"), "<think>cut off</think>"),
        (ChatMessage("assistant", "<think>\na\n</think>\n\nb"), "<think>a</think>b"),
        (ChatMessage("assistant", "a</think>b"), "<think>a</think>b"),  # the prompt had begun it
        (ChatMessage("assistant", "Say <think> now."), "Say <think> now."),
        (ChatMessage("assistant", "b"), "b"),
    ]:
        chat = [ChatMessage("user", "hi"), message, ChatMessage("user", "and?")]
        text = jinja_render.render(TEMPLATE, chat, {}).text
        assert text == f"[user]hi[assistant]{rendered}[user]and?[assistant]"


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
CHANNELS = {
    f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.": ("Hm.", "Yes."),
    f'{ANALYSIS}Hm.{NEXT}{CALL}{{"a": 1}}': ("Hm.", '{call}{{"a": 1}}'),
    f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}{{}}<|call|>": ("", "I look.{call}{{}}"),
    " to=functions.weather<|channel|>commentary json<|message|>{}": ("", "{call}{{}}"),
    f"{ANALYSIS}One.{NEXT}{ANALYSIS}Two.{NEXT}{FINAL}Yes.<|return|>": ("One.Two.", "Yes."),
    f"{ANALYSIS}Hm.{FINAL}Yes.": ("Hm.", "Yes."),
    "<|channel|>ana": ("", ""),
    "to be <b>plain</b> text": ("", "to be <b>plain</b> text"),
}


@pytest.mark.parametrize("answer", CHANNELS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_on_channels_however_it_is_cut(answer: str, size: int) -> None:
    thought, said = CHANNELS[answer]
    said = said.format(call="<|channel|>commentary to=functions.weather<|message|>")
    parser = thinking_tags.make_parser((ANALYSIS, "<|end|>"))
    parts = [
        part for i in range(0, len(answer), size) for part in parser.feed(answer[i : i + size])
    ]
    parts += parser.flush()
    assert "".join(part.text for part in parts if part.is_thinking) == thought
    assert "".join(part.text for part in parts if not part.is_thinking) == said
