"""The strip below the token view: what happened where the cursor stands."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.clean import clean
from localspec.protocol.events import Alternative, Round, Token, TokenClass
from localspec.tui.glyphs import Glyphs
from localspec.units import milliseconds, percent

_WORDS: dict[TokenClass, str] = {
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
UNKNOWN = "Its chances were not recorded"
_WHERE = (
    ": they are where this view was open while it was written, or where run had --probabilities."
)


SHORT = 20
"""Lines of a terminal that leave no room for more than four: as the breakpoint of the app."""


class Story(Static):
    """What is known of one token, and the legend."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs

    def tell(self, token: Token | None, round_: Round | None, marks: bool) -> None:
        """Show a token of a round; without one, how to get there."""
        lines = [Content("")]
        brief = self.app.size.height < SHORT
        if token is not None and round_ is not None:
            chances = Content(_chances(token, brief=brief))
            lines = [_first(token, brief=brief), chances, _round(token, round_, brief=brief)]
        self.update(Content("\n").join([*lines, legend(self._glyphs, marks)]))


def _quoted(text: str) -> str:
    shown = clean(text).replace("\n", "⏎").replace("\t", "⇥")
    return f"“{shown}”" if shown else "the end" if not text else "nothing visible"


def _first(token: Token, *, brief: bool) -> Content:
    said = Content.assemble(
        ("token ", "$muted"), (_quoted(token.text), "bold"), f"   {_WORDS[token.kind]}"
    )
    guess = _guess(token)
    if guess is None:
        return said
    sure = f" ({_share(guess.p_draft)} sure)" if guess.p_draft is not None and not brief else ""
    return Content.assemble(said, f": the draft said {_quoted(guess.text)}{sure}")


def _guess(token: Token) -> Alternative | None:
    return next((other for other in token.instead if other.guessed), None)


def _chances(token: Token, *, brief: bool) -> str:
    if token.p_target is None:
        return UNKNOWN + ("." if brief else _WHERE)
    said = f"the model gave it {_share(token.p_target)}, its {_ordinal(token.rank or 0)} choice"
    if token.p_draft is not None:
        said += f"; the draft {_share(token.p_draft)}"
    if brief:
        return f"{said}."
    others = ", ".join(
        f"{_quoted(o.text)} {_share(o.p)} ({_ordinal(o.rank)})" for o in token.instead
    )
    return f"{said}. Others: {others}" if others else f"{said}."


def _round(token: Token, round_: Round, *, brief: bool) -> Content:
    ms = round_.ms
    guessed = f"{round_.drafted} guessed, {round_.accepted} kept" if round_.drafted else "no guess"
    said = f"round {round_.n + 1} · {guessed}"
    if not brief:
        times = f"draft {milliseconds(ms.draft)}, check {milliseconds(ms.verify)}"
        said += f" · {times} · id {token.id}"
    return Content.styled(said, "$muted")


def _share(p: float) -> str:
    return "under 1 %" if p < 0.005 else percent(p)


def _ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def legend(glyphs: Glyphs, marks: bool) -> Content:
    """Each class as it looks in the text."""
    styles: dict[TokenClass, str] = {
        "accepted": "$kept underline",
        "bonus": "$bonus bold underline2",
        "correction": "$corrected italic",
        "plain": "",
    }
    parts: list[Content | str] = []
    for kind, words in LEGEND.items():
        mark = glyphs.marks[kind] if marks else ("▔" if kind == "correction" else "")
        parts += [Content.styled(f"{words}{mark}", styles[kind]), "   "]
    return Content.assemble(*parts)
