"""Thinking parts of a chat model's text: which markers it uses, and what stands between them."""

from __future__ import annotations

from typing import NamedTuple


class Markers(NamedTuple):
    """What begins and what ends a thinking part."""

    open: str
    close: str


_KNOWN: tuple[tuple[str, Markers], ...] = (
    # What tells them in a template's source.  The first that is found counts.
    ("<|channel|>analysis", Markers("<|channel|>analysis<|message|>", "<|end|>")),
    ("<|channel>thought", Markers("<|channel>thought\n", "<channel|>")),
    ("</seed:think>", Markers("<seed:think>", "</seed:think>")),
    ("</mm:think>", Markers("<mm:think>", "</mm:think>")),
    ("[/THINK]", Markers("[THINK]", "[/THINK]")),
    ("<|END_THINKING|>", Markers("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<|begin|>assistant<|think|>", Markers("<|think|>", "<|end|>")),
    ("<|inner_suffix|>", Markers("<|inner_prefix|>", "<|inner_suffix|>")),
    ("[BEGIN FINAL RESPONSE]", Markers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")),
    ("</think>", Markers("<think>", "</think>")),
    ("</thinking>", Markers("<thinking>", "</thinking>")),
    ("</thought>", Markers("<thought>", "</thought>")),
    ("</reasoning>", Markers("<reasoning>", "</reasoning>")),
)

_HEADS = {
    "<|channel|>analysis<|message|>": "<|start|>assistant<|channel|>final<|message|>",
    "<|think|>": "<|begin|>assistant<|content|>",
}
"""What stands between a thinking part and the answer, by the marker that began the part."""


_PLAIN = {
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
    "<|think|>": "<|content|>",
}
"""How an answer begins that has no thinking part."""


def markers(source: str) -> Markers | None:
    """Those of a template; None where its model does not think, or in a way we do not know."""
    return next((known for sign, known in _KNOWN if sign in source), None)


def closing(found: Markers) -> Markers:
    """The markers with all that stands between the thinking and the answer in the second."""
    return Markers(found.open, found.close + _HEADS.get(found.open, ""))


def is_open(prompt: str, question: str, found: Markers | None) -> bool:
    """Whether a prompt ends inside a thinking part.  What the person wrote does not count."""
    if found is None:
        return False
    end = prompt[prompt.rfind(question) + len(question) :] if question in prompt else prompt
    return end.rfind(found.open.rstrip()) > end.rfind(found.close)


def split(said: str, found: Markers | None) -> tuple[str | None, str]:
    """An answer's thinking, None where there is none, and the rest of it.

    The prompt may have begun the part, so that the answer only ends it.
    """
    if found is None or not said:
        return None, said
    begun = said.lstrip().startswith(found.open.rstrip())
    thought, closed, rest = said.partition(found.close)
    if not begun and not closed:
        return None, said.removeprefix(_PLAIN.get(found.open, ""))
    thought = thought.lstrip().removeprefix(found.open.rstrip()) if begun else thought
    if found.open in thought:  # text, then thinking: not a form we know
        return None, said
    head = _HEADS.get(found.open, "")
    return thought.strip(), rest.lstrip().removeprefix(head).lstrip()
