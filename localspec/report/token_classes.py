"""How the classes of tokens look: the one table that every front end renders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from localspec.report.lines import Line, Span
from localspec.sanitize import sanitize

if TYPE_CHECKING:  # the commands that mark no token start without the events
    from localspec.protocol.events import Token, TokenClass

TextAttribute = Literal["bold", "italic", "underline", "underline2", "overline"]


class TokenClassLook(NamedTuple):
    """What distinguishes a class beside the colour of its role.

    Attributes and marks tell the classes apart where there is no colour.
    """

    label: str
    mark: str
    description: str
    attributes: tuple[TextAttribute, ...] = ()


TOKEN_CLASSES: dict[TokenClass, TokenClassLook] = {
    "accepted": TokenClassLook(
        label="accepted",
        mark="ˢ",
        description="accepted draft token",
        attributes=("underline",),
    ),
    "bonus": TokenClassLook(
        label="bonus",
        mark="⁺",
        description="bonus token: all draft tokens of the round were accepted",
        attributes=("bold", "underline2"),
    ),
    "correction": TokenClassLook(
        label="corrected",
        mark="▔",
        description="corrected: draft token rejected",
        attributes=("italic", "overline"),
    ),
    "plain": TokenClassLook(
        label="plain",
        mark="·",
        description="plain: nothing was drafted",
    ),
}


def mark_text(text: str, token_class: TokenClass) -> Line:
    """Sanitized text with the mark of its class, which goes before trailing white space.

    For example `word\\n`, accepted, becomes `wordˢ` and the line feed.
    """
    if not text:
        return ()
    body = text.rstrip()
    marked = Span(body + TOKEN_CLASSES[token_class].mark, token_class)
    trailing = text[len(body) :]
    return (marked, Span(trailing)) if trailing else (marked,)


def mark_token(token: Token) -> Line:
    return mark_text(sanitize(token.text), token.kind)


def format_legend(*, with_marks: bool) -> Line:
    """Each class as its tokens look: `acceptedˢ   bonus⁺   corrected▔   plain·`."""
    spans: list[Span] = []
    for token_class, look in TOKEN_CLASSES.items():
        # Not every renderer can draw a line above text, so its mark stands for it.
        has_mark = with_marks or "overline" in look.attributes
        label = look.label + look.mark if has_mark else look.label
        if spans:
            spans.append(Span("   "))
        spans.append(Span(label, token_class))
    return tuple(spans)
