"""Thinking parts: which markers a template uses, and whether a prompt ends inside one."""

from __future__ import annotations

import pytest

from localspec.models.chat_template import thinking_tags
from localspec.models.chat_template.thinking_tags import ThinkingTags

THINK = ThinkingTags("<think>", "</think>")
HARMONY = "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}"


@pytest.mark.parametrize(
    ("source", "markers"),
    [
        ("{{ m.content.split('</think>')[-1] }}", ("<think>", "</think>")),
        ("[THINK]{{ t }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("<seed:think></seed:think>", ("<seed:think>", "</seed:think>")),
        ("<|START_THINKING|><|END_THINKING|>", ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("<|channel>thought\n<channel|>", ("<|channel>thought\n", "<channel|>")),
        (HARMONY, ("<|channel|>analysis<|message|>", "<|end|>")),
        ("<|im_start|>{{ m.role }}", None),
    ],
)
def test_a_templates_source_tells_its_markers(source: str, markers: tuple[str, str] | None) -> None:
    assert thinking_tags.detect_tags(source) == markers


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi<|im_end|><|im_start|>assistant\n<think>\n", True),
        ("Hi<|im_end|><|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("Hi<|im_end|><|im_start|>assistant\n", False),
        ("<think>old</think>answer Hi<|im_end|><think>", True),
        ("What is <think>? Hi<|im_end|>assistant\n", False),
    ],
)
def test_a_prompt_may_end_inside_thinking(prompt: str, expected: bool) -> None:
    assert thinking_tags.is_open(prompt, "Hi", THINK) is expected


def test_what_the_person_writes_begins_no_thinking() -> None:
    question = "What does <think> mean?"
    assert not thinking_tags.is_open(f"[user]{question}[assistant]", question, THINK)


def test_a_template_without_markers_never_thinks() -> None:
    assert not thinking_tags.is_open("<think>", "Hi", None)
    assert thinking_tags.separate_thinking("<think>a</think>b", None) == (None, "<think>a</think>b")


def test_what_stands_between_thinking_and_answer_belongs_to_neither() -> None:
    markers = thinking_tags.detect_tags(HARMONY)
    assert markers is not None
    shown = thinking_tags.with_answer_prefix(markers)
    assert shown.close == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert thinking_tags.separate_thinking(f"{shown.open}hm{shown.close}Hello", markers) == (
        "hm",
        "Hello",
    )
    assert thinking_tags.separate_thinking("<|channel|>final<|message|>Hello", markers) == (
        None,
        "Hello",
    )
