"""Thinking tags: which ones a chat template uses, and splitting an answer at them."""

from __future__ import annotations

from typing import NamedTuple


class ThinkingTags(NamedTuple):
    open: str
    close: str


_TAGS_BY_SIGN: tuple[tuple[str, ThinkingTags], ...] = (
    # A string in the template's source, and its tags; the first match applies.
    ("<|channel|>analysis", ThinkingTags("<|channel|>analysis<|message|>", "<|end|>")),
    ("<|channel>thought", ThinkingTags("<|channel>thought\n", "<channel|>")),
    ("</seed:think>", ThinkingTags("<seed:think>", "</seed:think>")),
    ("</mm:think>", ThinkingTags("<mm:think>", "</mm:think>")),
    ("[/THINK]", ThinkingTags("[THINK]", "[/THINK]")),
    ("<|END_THINKING|>", ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<|begin|>assistant<|think|>", ThinkingTags("<|think|>", "<|end|>")),
    ("<|inner_suffix|>", ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>")),
    (
        "[BEGIN FINAL RESPONSE]",
        ThinkingTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ("</think>", ThinkingTags("<think>", "</think>")),
    ("</thinking>", ThinkingTags("<thinking>", "</thinking>")),
    ("</thought>", ThinkingTags("<thought>", "</thought>")),
    ("</reasoning>", ThinkingTags("<reasoning>", "</reasoning>")),
)

_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|start|>assistant<|channel|>final<|message|>",
    "<|think|>": "<|begin|>assistant<|content|>",
}
"""The text between a thinking part and the answer, by opening tag."""
_DIRECT_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
    "<|think|>": "<|content|>",
}
"""The text before an answer without a thinking part, by opening tag."""


def detect_tags(source: str) -> ThinkingTags | None:
    """The tags of a template; None if it has no thinking parts of a known format."""
    return next((tags for sign, tags in _TAGS_BY_SIGN if sign in source), None)


def with_answer_prefix(tags: ThinkingTags) -> ThinkingTags:
    """The tags, with the text between thinking and answer added to the closing tag."""
    return ThinkingTags(tags.open, tags.close + _ANSWER_PREFIXES.get(tags.open, ""))


def answer_marker(tags: ThinkingTags | None, *, is_open: bool) -> str:
    """The text after which an answer without its thinking part begins; empty if at once.

    `is_open`: the prompt ends inside a thinking part.
    """
    if tags is None:
        return ""
    return _DIRECT_ANSWER_PREFIXES.get(tags.open) or (tags.close if is_open else "")


def is_open(prompt: str, question: str, tags: ThinkingTags | None) -> bool:
    """Whether a prompt ends inside a thinking part.  Tags in the user's question do not count."""
    if tags is None:
        return False
    end = prompt[prompt.rfind(question) + len(question) :] if question in prompt else prompt
    return end.rfind(tags.open.rstrip()) > end.rfind(tags.close)


def split_thinking(answer: str, tags: ThinkingTags | None) -> tuple[str | None, str]:
    """An answer's thinking (None without) and the rest of the answer.

    The prompt may hold the opening tag, so that the answer holds only the closing one.
    """
    if tags is None or not answer:
        return None, answer
    opened = answer.lstrip().startswith(tags.open.rstrip())
    thinking, closed, rest = answer.partition(tags.close)
    if not opened and not closed:
        return None, answer.removeprefix(_DIRECT_ANSWER_PREFIXES.get(tags.open, ""))
    thinking = thinking.lstrip().removeprefix(tags.open.rstrip()) if opened else thinking
    if tags.open in thinking:  # text before the thinking part: not a known format
        return None, answer
    prefix = _ANSWER_PREFIXES.get(tags.open, "")
    return thinking.strip(), rest.lstrip().removeprefix(prefix).lstrip()
