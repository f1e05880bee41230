"""The strip below the token view: what happened where the cursor stands."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.protocol.events import Alternative, Round, Token, TokenClass
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.units import milliseconds, percent

_CLASS_DESCRIPTIONS: dict[TokenClass, str] = {
    "accepted": "a guess that was kept",
    "bonus": "a bonus after a round kept whole",
    "correction": "a correction",
    "plain": "not guessed",
}
LEGEND: dict[TokenClass, str] = {
    "accepted": "kept guess",
    "bonus": "bonus",
    "correction": "correction",
    "plain": "not guessed",
}
NOT_RECORDED = "Its chances were not recorded"
_WHERE_RECORDED = (
    ": they are where this view was open while it was written, or where run had --probabilities."
)


SHORT_TERMINAL_HEIGHT = 20
"""Lines of a terminal that leave no room for more than four: as the breakpoint of the app."""


class TokenDetails(Static):
    """What is known of one token, and the legend."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def show_token(self, token: Token | None, round_: Round | None, show_marks: bool) -> None:
        """Show a token of a round; without one, how to get there."""
        lines = [Content("")]
        brief = self.app.size.height < SHORT_TERMINAL_HEIGHT
        if token is not None and round_ is not None:
            chances = Content(_probabilities_line(token, brief=brief))
            lines = [
                _token_line(token, brief=brief),
                chances,
                _round_line(token, round_, brief=brief),
            ]
        self.update(Content("\n").join([*lines, build_legend(self._glyphs, show_marks)]))


def _quoted(text: str) -> str:
    shown = sanitize(text).replace("\n", "⏎").replace("\t", "⇥")
    return f"“{shown}”" if shown else "the end" if not text else "nothing visible"


def _token_line(token: Token, *, brief: bool) -> Content:
    said = Content.assemble(
        ("token ", "$muted"), (_quoted(token.text), "bold"), f"   {_CLASS_DESCRIPTIONS[token.kind]}"
    )
    guess = _draft_alternative(token)
    if guess is None:
        return said
    sure = (
        f" ({_format_probability(guess.p_draft)} sure)"
        if guess.p_draft is not None and not brief
        else ""
    )
    return Content.assemble(said, f": the draft said {_quoted(guess.text)}{sure}")


def _draft_alternative(token: Token) -> Alternative | None:
    return next((other for other in token.instead if other.guessed), None)


def _probabilities_line(token: Token, *, brief: bool) -> str:
    if token.p_target is None:
        return NOT_RECORDED + ("." if brief else _WHERE_RECORDED)
    said = (
        f"the model gave it {_format_probability(token.p_target)}, "
        f"its {_ordinal(token.rank or 0)} choice"
    )
    if token.p_draft is not None:
        said += f"; the draft {_format_probability(token.p_draft)}"
    if brief:
        return f"{said}."
    others = ", ".join(
        f"{_quoted(o.text)} {_format_probability(o.p)} ({_ordinal(o.rank)})" for o in token.instead
    )
    return f"{said}. Others: {others}" if others else f"{said}."


def _round_line(token: Token, round_: Round, *, brief: bool) -> Content:
    ms = round_.ms
    guessed = f"{round_.drafted} guessed, {round_.accepted} kept" if round_.drafted else "no guess"
    said = f"round {round_.n + 1} · {guessed}"
    if not brief:
        times = f"draft {milliseconds(ms.draft)}, check {milliseconds(ms.verify)}"
        said += f" · {times} · id {token.id}"
    return Content.styled(said, "$muted")


def _format_probability(p: float) -> str:
    return "under 1 %" if p < 0.005 else percent(p)


def _ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def build_legend(glyphs: Glyphs, show_marks: bool) -> Content:
    """Each class as it looks in the text."""
    styles: dict[TokenClass, str] = {
        "accepted": "$kept underline",
        "bonus": "$bonus bold underline2",
        "correction": "$corrected italic",
        "plain": "",
    }
    parts: list[Content | str] = []
    for kind, words in LEGEND.items():
        mark = glyphs.token_marks[kind] if show_marks else ("▔" if kind == "correction" else "")
        parts += [Content.styled(f"{words}{mark}", styles[kind]), "   "]
    return Content.assemble(*parts)
