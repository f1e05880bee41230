"""Rules in llguidance's Lark, and the control tokens in their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping


class ControlTexts:
    """Finds control tokens in texts of a grammar: a rule names them by their id.

    For example, `call:f<tool_call|>` is the text `call:f` and the token 50. A token that
    ends an answer is left out: llguidance allows it where a grammar may end.
    """

    def __init__(self, tokens: Mapping[str, int], ends: Iterable[str]) -> None:
        """`tokens`: ids of the control tokens by their text; `ends`: those of an end."""
        self._tokens = tokens
        self._ends = frozenset(ends)

    def split(self, text: str) -> list[str | int]:
        """The texts between control tokens, and the ids of these tokens.

        `call:f<tool_call|>` gives `["call:f", 50]`.
        """
        parts: list[str | int] = []
        names = [name for name in self._tokens if name in text]
        if not names:
            if text:
                parts.append(text)
            return parts
        names.sort(key=len, reverse=True)
        pattern = "|".join(map(re.escape, names))
        for piece in re.split(f"({pattern})", text):
            if piece in self._ends:
                continue
            if piece in self._tokens:
                parts.append(self._tokens[piece])
            elif piece:
                parts.append(piece)
        return parts

    def split_first(self, text: str) -> tuple[str, str]:
        """The text up to the first control token, and the rest, which begins with it."""
        names = [name for name in self._tokens if name in text]
        if not names:
            return text, ""
        at = min(text.index(name) for name in names)
        return text[:at], text[at:]

    def ends_with_end(self, text: str) -> bool:
        """Whether a token that ends an answer is the last one of a text."""
        return any(text.endswith(end) for end in self._ends)


class LarkRules:
    """The rules of one grammar."""

    def __init__(self, controls: ControlTexts) -> None:
        self.controls = controls
        self._bodies: dict[str, str] = {}

    def add(self, name: str, body: str) -> str:
        """Add a rule, or replace the one with its name; the name is returned."""
        self._bodies[name] = body
        return name

    def __contains__(self, name: object) -> bool:
        return name in self._bodies

    def letters(self, text: str) -> str:
        """A text of a schema as a term, in which a control token's name is only letters.

        A schema comes from a server, and may not end a model's turn or begin another.
        """
        return json.dumps(text, ensure_ascii=False)

    def literal(self, text: str) -> str:
        """A text of the template, with the control tokens in it, as terms.

        `call:f<tool_call|>` gives `"call:f" <[50]>`.
        """
        terms: list[str] = []
        for part in self.controls.split(text):
            if isinstance(part, int):
                terms.append(f"<[{part}]>")
            else:
                terms.append(self.letters(part))
        return " ".join(terms) or '""'

    def join(self) -> str:
        return "\n".join(f"{name}: {body}" for name, body in self._bodies.items())


def can_be_empty(repetition: str) -> bool:
    """Whether a repetition allows no character: `*` and `{0,9}` do, `{2,9}` does not."""
    return repetition == "*" or repetition.startswith("{0,")


def escape_regex(text: str) -> str:
    """A text as a regular expression of llguidance, between slashes."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)
