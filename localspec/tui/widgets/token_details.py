"""The strip below the token view: details of the selected token, and the legend."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.protocol.events import Alternative, Round, Token, TokenClass
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.units import milliseconds, percent

_CLASS_DESCRIPTIONS: dict[TokenClass, str] = {
    "accepted": "accepted draft token",
    "bonus": "bonus token: all draft tokens of the round were accepted",
    "correction": "corrected: draft token rejected",
    "plain": "plain: nothing was drafted",
}
LEGEND: dict[TokenClass, str] = {
    "accepted": "accepted",
    "bonus": "bonus",
    "correction": "corrected",
    "plain": "plain",
}
_NOT_RECORDED = "Probabilities not recorded"
_HOW_TO_RECORD = "; open f2 before generating, or use --probabilities."

_SHORT_TERMINAL_HEIGHT = 20
"""Below this height the strip has four lines; the same as the app's vertical breakpoint."""


class TokenDetails(Static):
    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def show_token(self, token: Token | None, round_: Round | None, show_marks: bool) -> None:
        lines = [Content("")]
        brief = self.app.size.height < _SHORT_TERMINAL_HEIGHT
        if token is not None and round_ is not None:
            lines = [
                _token_line(token, brief=brief),
                Content(_probabilities_line(token, brief=brief)),
                _round_line(token, round_, brief=brief),
            ]
        self.update(Content("\n").join([*lines, build_legend(self._glyphs, show_marks)]))


def _quoted(text: str) -> str:
    shown = sanitize(text).replace("\n", "⏎").replace("\t", "⇥")
    return f"“{shown}”" if shown else "end of text" if not text else "invisible characters"


def _token_line(token: Token, *, brief: bool) -> Content:
    description = _CLASS_DESCRIPTIONS[token.kind]
    if (rejected := _rejected_draft(token)) is not None:
        description = f"corrected: draft token {_quoted(rejected.text)} rejected"
        if rejected.p_draft is not None and not brief:
            description += f" (draft probability {_format_probability(rejected.p_draft)})"
    return Content.assemble(
        ("token ", "$muted"), (_quoted(token.text), "bold"), f"   {description}"
    )


def _rejected_draft(token: Token) -> Alternative | None:
    return next(
        (alternative for alternative in token.alternatives if alternative.was_drafted), None
    )


def _probabilities_line(token: Token, *, brief: bool) -> str:
    if token.p_target is None:
        return _NOT_RECORDED + ("." if brief else _HOW_TO_RECORD)
    line = f"target probability {_format_probability(token.p_target)}, rank {token.rank or 0:,}"
    if token.p_draft is not None:
        line += f"; draft probability {_format_probability(token.p_draft)}"
    if brief or not token.alternatives:
        return f"{line}."
    alternatives = ", ".join(
        f"{_quoted(a.text)} {_format_probability(a.p)} (rank {a.rank:,})"
        for a in token.alternatives
    )
    return f"{line}. Alternatives: {alternatives}"


def _round_line(token: Token, round_: Round, *, brief: bool) -> Content:
    ms = round_.ms
    drafted = "nothing drafted"
    if round_.drafted:
        drafted = f"{round_.drafted} drafted, {round_.accepted} accepted"
    line = f"round {round_.n + 1} · {drafted}"
    if not brief:
        times = f"draft {milliseconds(ms.draft)}, verify {milliseconds(ms.verify)}"
        line += f" · {times} · id {token.id}"
    return Content.styled(line, "$muted")


def _format_probability(p: float) -> str:
    return "under 1 %" if p < 0.005 else percent(p)


def build_legend(glyphs: Glyphs, show_marks: bool) -> Content:
    """The names of the token classes, each in its style."""
    styles: dict[TokenClass, str] = {
        "accepted": "$accepted underline",
        "bonus": "$bonus bold underline2",
        "correction": "$corrected italic",
        "plain": "",
    }
    parts: list[Content | str] = []
    for kind, label in LEGEND.items():
        mark = glyphs.token_marks[kind] if show_marks else ("▔" if kind == "correction" else "")
        parts += [Content.styled(f"{label}{mark}", styles[kind]), "   "]
    return Content.assemble(*parts)
