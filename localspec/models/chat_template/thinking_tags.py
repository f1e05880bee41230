"""Thinking parts of a chat model's text: which markers it uses, and what stands between them."""

from __future__ import annotations

from typing import NamedTuple


class ThinkingTags(NamedTuple):
    """What begins and what ends a thinking part."""

    open: str
    close: str


_TAGS_BY_SIGN: tuple[tuple[str, ThinkingTags], ...] = (
    # What tells them in a template's source.  The first that is found counts.
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
"""What stands between a thinking part and the answer, by the marker that began the part."""


_DIRECT_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
    "<|think|>": "<|content|>",
}
"""How an answer begins that has no thinking part."""


def detect_tags(source: str) -> ThinkingTags | None:
    """Those of a template; None where its model does not think, or in a way we do not know."""
    return next((known for sign, known in _TAGS_BY_SIGN if sign in source), None)


def with_answer_prefix(tags: ThinkingTags) -> ThinkingTags:
    """The markers with all that stands between the thinking and the answer in the second."""
    return ThinkingTags(tags.open, tags.close + _ANSWER_PREFIXES.get(tags.open, ""))


def is_open(prompt: str, question: str, tags: ThinkingTags | None) -> bool:
    """Whether a prompt ends inside a thinking part.  What the person wrote does not count."""
    if tags is None:
        return False
    end = prompt[prompt.rfind(question) + len(question) :] if question in prompt else prompt
    return end.rfind(tags.open.rstrip()) > end.rfind(tags.close)


def split_thinking(answer: str, tags: ThinkingTags | None) -> tuple[str | None, str]:
    """An answer's thinking, None where there is none, and the rest of it.

    The prompt may have begun the part, so that the answer only ends it.
    """
    if tags is None or not answer:
        return None, answer
    begun = answer.lstrip().startswith(tags.open.rstrip())
    thought, closed, rest = answer.partition(tags.close)
    if not begun and not closed:
        return None, answer.removeprefix(_DIRECT_ANSWER_PREFIXES.get(tags.open, ""))
    thought = thought.lstrip().removeprefix(tags.open.rstrip()) if begun else thought
    if tags.open in thought:  # text, then thinking: not a form we know
        return None, answer
    head = _ANSWER_PREFIXES.get(tags.open, "")
    return thought.strip(), rest.lstrip().removeprefix(head).lstrip()
