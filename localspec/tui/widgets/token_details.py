"""The strip below the token view: details of the selected token, and the legend."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.protocol.events import Round, Token
from localspec.report.token_classes import TOKEN_CLASSES, format_legend
from localspec.sanitize import sanitize
from localspec.tui.text.report_content import to_content
from localspec.units import milliseconds, percent

_MAX_QUOTED = 200  # Characters of a token; a token has a word or two.


class TokenDetails(Static):
    def __init__(self) -> None:
        super().__init__(markup=False)

    def show_token(
        self, token: Token | None, round_: Round | None, show_marks: bool
    ) -> None:
        lines = [Content("")]
        legend = to_content(format_legend(with_marks=show_marks))
        brief = self.screen.has_class("-short")  # The strip then has four lines.
        if token is not None and round_ is not None:
            lines = [
                _token_line(token, brief=brief),
                Content(_probabilities_line(token, brief=brief)),
                _round_line(token, round_, brief=brief),
            ]
        self.update(Content("\n").join([*lines, legend]))


def _quoted(text: str) -> str:
    if not text:
        return "end of text"
    shown = sanitize(text[:_MAX_QUOTED]).replace("\n", "⏎").replace("\t", "⇥")
    return f"“{shown}”" if shown else "invisible characters"


def _token_line(token: Token, *, brief: bool) -> Content:
    description = TOKEN_CLASSES[token.kind].description
    rejected = next((each for each in token.alternatives if each.was_drafted), None)
    if rejected is not None:
        description = f"corrected: draft token {_quoted(rejected.text)} rejected"
        if rejected.p_draft is not None and not brief:
            probability = _format_probability(rejected.p_draft)
            description += f" (draft probability {probability})"
    text = (_quoted(token.text), "bold")
    return Content.assemble(("token ", "$muted"), text, f"   {description}")


def _probabilities_line(token: Token, *, brief: bool) -> str:
    if token.p_target is None:
        how = "" if brief else "; open f2 before generating, or use --probabilities"
        return f"Probabilities not recorded{how}."
    probability = _format_probability(token.p_target)
    line = f"target probability {probability}, rank {token.rank or 0:,}"
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
    drafted = "nothing drafted"
    if round_.drafted:
        drafted = f"{round_.drafted} drafted, {round_.accepted} accepted"
    line = f"round {round_.n + 1} · {drafted}"
    if not brief:
        draft = milliseconds(round_.ms.draft)
        verify = milliseconds(round_.ms.verify)
        line += f" · draft {draft}, verify {verify} · id {token.id}"
    return Content.styled(line, "$muted")


def _format_probability(p: float) -> str:
    return "under 1 %" if p < 0.005 else percent(p)
