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
        label="guessed right",
        mark="ˢ",
        description="a guess that was right",
        attributes=("underline",),
    ),
    "bonus": TokenClassLook(
        label="written by the model",
        mark="⁺",
        description="written by the model, after a guess that was all right",
        attributes=("bold", "underline2"),
    ),
    "correction": TokenClassLook(
        label="written instead",
        mark="▔",
        description="written by the model instead of a wrong guess",
        attributes=("italic", "overline"),
    ),
    "plain": TokenClassLook(
        label="written by the model",
        mark="·",
        description="written by the model, without a guess",
    ),
}


def mark_text(text: str, token_class: TokenClass, *, is_coloured: bool = False) -> Line:
    """Sanitized text with the mark of its class, which goes before trailing white space.

    For example `word\\n`, accepted, becomes `wordˢ` and the line feed. Where it is
    coloured it needs no mark: a text with one at each word is hard to read.
    """
    if not text:
        return ()
    if is_coloured:
        return (Span(text, token_class),)
    body = text.rstrip()
    marked = Span(body + TOKEN_CLASSES[token_class].mark, token_class)
    trailing = text[len(body) :]
    return (marked, Span(trailing)) if trailing else (marked,)


def mark_token(token: Token, *, is_coloured: bool = False) -> Line:
    return mark_text(sanitize(token.text), token.kind, is_coloured=is_coloured)


def format_legend(*, with_marks: bool) -> Line:
    """Each label as its tokens look; classes of one label share it.

    With marks, as a text without colours has them: `guessed rightˢ   written by the
    model⁺·   written instead▔`.
    """
    classes_by_label: dict[str, list[TokenClass]] = {}
    for token_class, look in TOKEN_CLASSES.items():
        classes_by_label.setdefault(look.label, []).append(token_class)
    spans: list[Span] = []
    for label, token_classes in classes_by_label.items():
        if spans:
            spans.append(Span("   "))
        spans.append(Span(label, token_classes[-1]))
        if with_marks:
            for token_class in token_classes:
                spans.append(Span(TOKEN_CLASSES[token_class].mark, token_class))
    return tuple(spans)
