"""Thinking is recognised by a template's tags, and split off a streamed answer."""

import re
from collections.abc import Callable, Iterable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models.chat_template import jinja_render, thinking_tags
from localspec.models.chat_template.thinking_tags import (
    AnswerParser,
    AnswerPart,
    HarmonyParser,
    MessageParser,
    SolarParser,
    ThinkingParser,
    make_parser,
    merge_parts,
    split_thinking,
)
from localspec.protocol.wire import ChatMessage

HARMONY = (
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}"
)

HY3 = """{% set HYTK = ':opensource' %}{% set end = '</think{}>'.format(HYTK) %}
{{- m.reasoning_content + end + m.content }}"""
"""As tencent-Hy3's, which makes its tags of a name."""


def test_a_templates_source_tells_its_markers() -> None:
    for source, markers in [
        ("{{ m.content.split('</think>')[-1] }}", ("<think>", "</think>")),
        ("[THINK]{{ t }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("<|channel>thought\n<channel|>", ("<|channel>thought\n", "<channel|>")),
        (HY3, ("<think:opensource>", "</think:opensource>")),
        (HARMONY, ("<|channel|>analysis<|message|>", "<|end|>")),
        ("<|im_start|>{{ m.role }}", None),
    ]:
        assert thinking_tags.detect_tags(source) == markers


def test_a_template_without_markers_never_thinks() -> None:
    assert not thinking_tags.is_open("<think>", None)
    assert thinking_tags.separate_thinking("<think>a</think>b", None) == (
        None,
        "<think>a</think>b",
    )


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


def feed_all(parser: AnswerParser, chunks: Iterable[str]) -> tuple[AnswerPart, ...]:
    parts: list[AnswerPart] = []
    for chunk in chunks:
        parts += parser.feed(chunk)
    parts += parser.flush()
    return merge_parts(parts)


def shown_text(parts: Iterable[AnswerPart]) -> str:
    """All that a reader can see, thinking included."""
    return "".join(part.text for part in parts)


def test_tags_without_end_take_linear_time() -> None:
    parts = split_thinking("<think></think>" * 60_000 + "b", MARKERS)
    assert parts == (AnswerPart(False, "b"),)


@given(TEXTS, st.booleans())
def test_nothing_but_the_tags_is_lost(text: str, inside: bool) -> None:
    shown = shown_text(split_thinking(text, MARKERS, inside))
    assert re.sub(r"[^a漢\s]", "", shown) == re.sub(r"[^a漢\s]", "", text)


@given(TEXTS, st.booleans(), st.data())
def test_any_chunking_gives_the_same_split(
    text: str, inside: bool, data: st.DataObject
) -> None:
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
        (
            ChatMessage("assistant", "cut off", starts_in_thinking=True),
            "<think>cut off</think>",
        ),
        (
            ChatMessage("assistant", "a</think>b", starts_in_thinking=True),
            "<think>a</think>b",
        ),
        (ChatMessage("assistant", "b", reasoning=" a\n"), "<think>a</think>b"),
        (ChatMessage("assistant", "<think>cut off"), "<think>cut off</think>"),
        (ChatMessage("assistant", "<think>\na\n</think>\n\nb"), "<think>a</think>b"),
        (
            ChatMessage("assistant", "a</think>b"),
            "<think>a</think>b",
        ),  # the prompt had begun it
        (ChatMessage("assistant", "Say <think> now."), "Say <think> now."),
        (ChatMessage("assistant", "b"), "b"),
    ]:
        chat = [ChatMessage("user", "hi"), message, ChatMessage("user", "and?")]
        text = jinja_render.render(TEMPLATE, chat, {}).text
        assert text == f"[user]hi[assistant]{rendered}[user]and?[assistant]"


ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
CHANNELS = {
    f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.": ("Hm.", "Yes."),
    f'{ANALYSIS}Hm.{NEXT}{CALL}{{"a": 1}}': ("Hm.", '{call}{{"a": 1}}'),
    f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}{{}}<|call|>": (
        "",
        "I look.{call}{{}}",
    ),
    " to=functions.weather<|channel|>commentary json<|message|>{}": ("", "{call}{{}}"),
    f"{ANALYSIS}One.{NEXT}{ANALYSIS}Two.{NEXT}{FINAL}Yes.<|return|>": (
        "One.Two.",
        "Yes.",
    ),
    f"{ANALYSIS}Hm.{FINAL}Yes.": ("Hm.", "Yes."),
    "<|channel|>ana": ("", ""),
    f"{ANALYSIS}Hm.{NEXT}<|channel|>final <|constrain|>js": ("Hm.", ""),
    "to be <b>plain</b> text": ("", "to be <b>plain</b> text"),
    # other spellings of a header
    f"{ANALYSIS}Hm.{NEXT}<|channel|>final <|constrain|>json<|message|>{{}}": (
        "Hm.",
        "{{}}",
    ),
    "<|channel|>final json<|message|>{}": ("", "{{}}"),
    "<|channel|> final<|message|>Yes.": ("", "Yes."),
    "<|channel|>commentary?commentary?<|message|>Yes.": ("", "Yes."),
    "<|channel|>commentary 2?<|message|>Yes.": ("", "Yes."),
    "<|channel|>??<|message|>Yes.": ("", "Yes."),
    "<|channel|>commentary to=assistant<|channel|>commentary?<|message|>Yes.": (
        "",
        "Yes.",
    ),
    f"<|channel|>bash{ANALYSIS}Hm.{NEXT}{FINAL}Yes.": ("Hm.", "Yes."),
    f"<|start|><|start|>assistant{FINAL}Yes.": ("", "Yes."),
    f"{ANALYSIS}Hm.<|end|>{FINAL}Yes.": ("Hm.", "Yes."),
    f"{ANALYSIS}Hm.<|end|><|start|> assistant<|channel|> final<|message|>Yes.": (
        "Hm.",
        "Yes.",
    ),
    f"{ANALYSIS}Hm.<|start|>assistant{FINAL}Yes.": ("Hm.", "Yes."),
    # headers that never end
    "<|channel|>analysis No end": (" No end", ""),
    f"<|channel|>analysis We look it up.{NEXT}{FINAL}Yes.": (" We look it up.", "Yes."),
    f"{ANALYSIS}Hm.{NEXT}<|channel|>final\nYes, it is so.": ("Hm.", "\nYes, it is so."),
    f"{ANALYSIS}Hm.<|start|>assistant<|channel|>final\nYes, it is.": (
        "Hm.",
        "\nYes, it is.",
    ),
    f"{ANALYSIS}`<|start|>assistant<|channel|>final` is a header.{NEXT}{FINAL}Yes.": (
        "`<|start|>assistant<|channel|>final` is a header.",
        "Yes.",
    ),
    "<|channel|>finalYes.<|return|>": ("", "Yes."),
    '<|channel|>final{"a": 1}': ("", '{{"a": 1}}'),
    '<|channel|>final <|constrain|>json{"a": 1}': ("", '{{"a": 1}}'),
    "<|channel|>commentary to=functions.weather <|constrain|>json{}": (
        "",
        "{call}{{}}",
    ),
    " to=weather<|channel|>commentary json<|message|>{}": ("", "{call}{{}}"),
    f"<|channel|>control<|end|><|start|>assistant{FINAL}Yes.": (
        "",
        "<|channel|>controlYes.",
    ),
    # text that names the markers
    f"{FINAL}The token <|channel|>": ("", "The token <|channel|>"),
    f"{FINAL}<|start|> begins, <|message|> ends a header.": (
        "",
        "<|start|> begins, <|message|> ends a header.",
    ),
    f"{FINAL}Tokens: `<|channel|>` and `<|message|>`.": (
        "",
        "Tokens: `<|channel|>` and `<|message|>`.",
    ),
    f"{ANALYSIS}Is <|channel|> one?{NEXT}{FINAL}Yes.": ("Is <|channel|> one?", "Yes."),
    "to": ("", "to"),
    "<": ("", "<"),
}


@pytest.mark.parametrize("answer", CHANNELS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_on_channels_however_it_is_cut(answer: str, size: int) -> None:
    thought, said = CHANNELS[answer]
    said = said.format(call="<|channel|>commentary to=functions.weather<|message|>")
    chunks = (answer[i : i + size] for i in range(0, len(answer), size))
    parts = feed_all(make_parser(HARMONY_TAGS), chunks)
    assert "".join(part.text for part in parts if part.is_thinking) == thought
    assert "".join(part.text for part in parts if not part.is_thinking) == said


LONG = "More prose follows. " * 12
NAMES_A_MARKER = f"The token <|channel|> says on which channel a message is. {LONG}"
NEVER_ENDS = f"<|channel|>plan {LONG}"


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (NEVER_ENDS, NEVER_ENDS),
        (f"{FINAL}{NAMES_A_MARKER}", NAMES_A_MARKER),
        (f"<|start|> {LONG}", f"<|start|> {LONG}"),
        (f"to={LONG}", f"to={LONG}"),
        (f"{FINAL}<|start|>assistant {LONG}", f"<|start|>assistant {LONG}"),
        (
            f"<|channel|>{'x' * 300}<|message|>Yes.",
            f"<|channel|>{'x' * 300}<|message|>Yes.",
        ),
    ],
)
def test_a_header_without_end_is_shown_as_text(
    answer: str, said: str, size: int
) -> None:
    chunks = (answer[i : i + size] for i in range(0, len(answer), size))
    assert feed_all(make_parser(HARMONY_TAGS), chunks) == (AnswerPart(False, said),)


def test_an_answer_of_a_chats_history_may_hold_a_header_without_end() -> None:
    history = f"<|channel|>{'analysis word ' * 30}"
    chat = [
        ChatMessage("user", "hi"),
        ChatMessage("assistant", history),
        ChatMessage("user", "?"),
    ]
    source = f"{HARMONY}{{% for m in messages %}}[{{{{ m.content }}}}]{{% endfor %}}"
    source = source.replace("m.thinking", "''")
    assert f"[hi][{history}][?]" in jinja_render.render(source, chat, {}).text


def test_thinking_that_was_cut_is_thinking_where_the_prompt_begins_it() -> None:
    tags = thinking_tags.detect_tags(HARMONY)
    separated = thinking_tags.separate_thinking(
        "cut off", tags, starts_in_thinking=True
    )
    assert separated == ("cut off", "")


HARMONY_TAGS = (ANALYSIS, "<|end|>")
SOLAR_TAGS = ("<|think|>", "<|end|>")
SOLAR_NEXT = "<|end|><|begin|>assistant"
SOLAR = {
    f"<|think|>Hm.{SOLAR_NEXT}<|content|>Yes.": ("Hm.", "Yes."),
    "<|think|>Hm.<|end|><|content|>Yes.": ("Hm.", "Yes."),
    "<|content|>Yes.": ("", "Yes."),
    "<|begin|>assistant<|content|>Yes.<|end|>": ("", "Yes."),
    "Yes.": ("", "Yes."),
    f"<|think|>Is <|content|> one?{SOLAR_NEXT}<|content|>Yes.": (
        "Is <|content|> one?",
        "Yes.",
    ),
    "<|content|>See <|begin|> and <|think|>.": ("", "See <|begin|> and <|think|>."),
    "<|think|>Hm.<|end|><|begin|>assis": ("Hm.", ""),
}


@pytest.mark.parametrize("answer", SOLAR)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_of_solar_however_it_is_cut(answer: str, size: int) -> None:
    thought, said = SOLAR[answer]
    chunks = (answer[i : i + size] for i in range(0, len(answer), size))
    parts = feed_all(make_parser(SOLAR_TAGS), chunks)
    assert "".join(part.text for part in parts if part.is_thinking) == thought
    assert "".join(part.text for part in parts if not part.is_thinking) == said


HARMONY_PIECES = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
    *("<|end|>", "<|return|>", "<|call|>", "to=", "functions.f", "assistant"),
    *(
        "analysis",
        "final",
        "commentary",
        "json",
        " ",
        "\n",
        "<",
        "<|",
        "|>",
        "t",
        "a",
        "é",
        "漢",
    ),
    *('{"a": 1}', "{", FINAL, ANALYSIS, NEXT),
]
SOLAR_PIECES = [
    *("<|begin|>", "<|think|>", "<|content|>", "<|end|>", "assistant"),
    *(" ", "<", "<|", "|>", "a", "{", SOLAR_NEXT),
]
FAMILIES = {
    "harmony": (HARMONY_TAGS, HARMONY_PIECES),
    "solar": (SOLAR_TAGS, SOLAR_PIECES),
}
STRICT_PARSERS: dict[str, type[MessageParser]] = {
    "harmony": HarmonyParser,
    "solar": SolarParser,
}
END_MARKERS = re.compile(r"<\|(?:end|return|call)\|>")


class CountingSteps:
    """Counts the steps of parsers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        for name in ("_read", "_find_header"):
            monkeypatch.setattr(
                MessageParser, name, self._count(getattr(MessageParser, name))
            )

    def _count(self, step: Callable[..., int]) -> Callable[..., int]:
        def counted(*args: object, **options: object) -> int:
            self.n += 1
            assert self.n < 10_000, "the parser does not end"
            return step(*args, **options)

        return counted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parser_ends_in_as_many_steps_as_there_are_characters(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All short texts of its markers, with and without a long text behind them."""
    tags, pieces = FAMILIES[family]
    for chosen, after in product(
        product(pieces[:8], repeat=3), ("", "x" * 300, " y" * 150)
    ):
        steps = CountingSteps(monkeypatch)
        text = "".join(chosen) + after
        split_thinking(text, tags)
        assert steps.n <= 2 * len(text) + 2
        monkeypatch.undo()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("begun", ["", FINAL, "<|content|>"])
def test_markers_without_end_take_linear_time(family: str, begun: str) -> None:
    tags, pieces = FAMILIES[family]
    for piece in pieces:
        split_thinking(begun + piece * (200_000 // len(piece)), tags)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), inside=st.booleans())
def test_any_cut_of_messages_gives_the_same_parts(
    family: str, data: st.DataObject, inside: bool
) -> None:
    tags, pieces = FAMILIES[family]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=14)))
    text = text.replace("a", "a" * data.draw(st.sampled_from([1, 1, 1, 60])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    whole = split_thinking(text, tags, inside)
    chunks = (
        text[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
    )
    assert feed_all(make_parser(tags, inside), chunks) == whole
    assert feed_all(make_parser(tags, inside), text) == whole


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), inside=st.booleans())
def test_a_text_without_a_whole_header_is_shown(
    family: str, data: st.DataObject, inside: bool
) -> None:
    """But for the markers that end messages, and a header that the answer's end cuts.

    That is so in a client's text. A model forgets to end its headers.
    """
    tags, pieces = FAMILIES[family]
    last_markers = ("<|message|>", "<|think|>", "<|content|>")
    headless = [
        piece for piece in pieces if not any(last in piece for last in last_markers)
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(headless), max_size=14)))
    expected = END_MARKERS.sub("", text)
    parser = STRICT_PARSERS[family](inside, is_model=False)
    shown = shown_text(feed_all(parser, [text]))
    assert expected.startswith(shown)
    lost = expected[len(shown) :].lstrip()
    documented = make_parser(tags).expected_headers(has_tools=True)
    is_cut_header = any(header.startswith(lost) for header in documented)
    is_cut_call = any(
        lost.startswith(header) for header in documented if header.endswith("to=")
    )
    assert is_cut_header or is_cut_call


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), inside=st.booleans())
def test_what_no_header_can_hold_is_never_lost(
    family: str, data: st.DataObject, inside: bool
) -> None:
    """Such as the JSON of an answer whose header has mistakes."""
    tags, pieces = FAMILIES[family]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=14)))
    shown = shown_text(split_thinking(text, tags, inside))
    assert shown.count("{") == text.count("{")


KIMI_TAGS = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
KIMI_ANSWER = (
    "A plan.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
)
KIMI_CALL = (
    '<|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
KIMI_END = "<|close|>message<|sep|>"


def test_kimi_k3_is_recognised_by_its_macro() -> None:
    source = "{%- macro open_tag(tag) -%}{{- '<|open|>' + tag -}}{%- endmacro -%}"
    assert thinking_tags.detect_tags(source) == KIMI_TAGS


@pytest.mark.parametrize("n", [1, 3, 7, 500])
def test_an_answer_of_kimi_k3_is_split_however_it_is_cut(n: int) -> None:
    text = KIMI_ANSWER + KIMI_CALL + KIMI_END
    parser = make_parser(KIMI_TAGS, starts_in_thinking=True)
    parts = []
    for at in range(0, len(text), n):
        parts += parser.feed(text[at : at + n])
    parts += parser.flush()

    thinking, answer = merge_parts(parts)

    assert (thinking.is_thinking, thinking.text) == (True, "A plan.")
    assert (answer.is_thinking, answer.text) == (False, f"Yes.{KIMI_CALL}")


def test_an_answer_of_kimi_k3_without_thinking_is_no_thinking() -> None:
    (answer,) = split_thinking("Yes.<|close|>response<|sep|>", KIMI_TAGS)
    assert (answer.is_thinking, answer.text) == (False, "Yes.")


def test_thinking_of_kimi_k3_may_end_with_its_response() -> None:
    text = "A plan.<|open|>response<|sep|>Yes."
    thinking, answer = split_thinking(text, KIMI_TAGS, starts_in_thinking=True)
    assert (thinking.text, answer.text) == ("A plan.", "Yes.")
