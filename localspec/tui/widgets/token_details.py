"""The strip below the transcript: the legend, and details of the selected token."""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.widgets import Static

from localspec.protocol.events import Round, Token
from localspec.report.token_classes import TOKEN_CLASSES, format_legend
from localspec.sanitize import sanitize
from localspec.tui import themes
from localspec.tui.text.report_content import to_content
from localspec.units import milliseconds, percent

_MAX_QUOTED = 200  # Characters of a token; a token has a word or two.


class TokenDetails(Static):
    def __init__(self) -> None:
        super().__init__(markup=False)
        self._token: Token | None = None
        self._round: Round | None = None
        self._show_marks = False

    def on_mount(self) -> None:
        # The legend has the colours of a theme, not their names.
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def show_token(
        self, token: Token | None, round_: Round | None, show_marks: bool
    ) -> None:
        """`token`: None for the legend alone."""
        self._token = token
        self._round = round_
        self._show_marks = show_marks
        self._draw()

    def on_resize(self) -> None:
        if self._token is None:
            self._draw()

    def _draw(self) -> None:
        token = self._token
        round_ = self._round
        if token is None or round_ is None:
            self.update(self._make_legend())
            return
        brief = self.screen.has_class("-short")  # The strip then has four lines.
        lines = [
            _token_line(token, round_, brief=brief),
            Content(_probabilities_line(token, brief=brief)),
            _round_line(token, round_, brief=brief),
        ]
        if self._show_marks:
            lines.append(to_content(format_legend(with_marks=True)))
        self.update(Content("\n").join(lines))

    def _make_legend(self) -> Text:
        """What the colours of an answer mean, each in its own."""
        styles = themes.token_styles(self.app.current_theme, marks=self._show_marks)
        words = _choose_legend(self.content_size.width)
        legend = Text(no_wrap=True, overflow="crop")
        for style, label in (
            (styles.accepted, words.accepted),
            ("", words.own),
            (styles.draft, words.draft),
            (styles.rejected, words.rejected),
            (styles.correction, words.correction),
        ):
            if legend and label:
                legend.append(_LEGEND_GAP)
            legend.append(label, Style.parse(style))
        return legend


class _LegendWords(NamedTuple):
    accepted: str
    own: str  # Of the model's own text, which has no colour.
    draft: str
    rejected: str
    correction: str


_LEGEND_GAP = "  "
_LEGENDS = (
    _LegendWords(
        accepted="guessed right",
        own="the model's own",
        draft="being checked",
        rejected="thrown away",
        correction="written instead",
    ),
    _LegendWords(
        accepted="guessed right",
        own="",
        draft="being checked",
        rejected="thrown away",
        correction="written instead",
    ),
    _LegendWords(
        accepted="guessed right",
        own="",
        draft="checking",
        rejected="wrong",
        correction="instead",
    ),
)
"""The legend in fewer and fewer words: it has one line in every width with a panel."""


def _choose_legend(width: int) -> _LegendWords:
    for words in _LEGENDS:
        if len(_LEGEND_GAP.join(filter(None, words))) <= width:
            return words
    return _LEGENDS[-1]


def _quoted(text: str) -> str:
    if not text:
        return "end of text"
    shown = sanitize(text[:_MAX_QUOTED]).replace("\n", "⏎").replace("\t", "⇥")
    return f"“{shown}”" if shown else "invisible characters"


def _token_line(token: Token, round_: Round, *, brief: bool) -> Content:
    description = TOKEN_CLASSES[token.kind].description
    rejected = next((each for each in token.alternatives if each.was_drafted), None)
    if rejected is None and token.kind == "correction" and round_.rejected:
        text = _quoted(round_.rejected[0])
        description = f"written by the model instead of {text}"
    elif rejected is not None:
        description = f"written by the model instead of {_quoted(rejected.text)}"
        if rejected.p_draft is not None and not brief:
            probability = _format_probability(rejected.p_draft)
            description += f" (draft probability {probability})"
    name = (_quoted(token.text), "bold")
    return Content.assemble(("token ", "$muted"), name, f"   {description}")


def _probabilities_line(token: Token, *, brief: bool) -> str:
    if token.p_target is None:
        how = "" if brief else "; press tab when the answer has ended"
        return f"Probabilities not recorded{how}."
    probability = _format_probability(token.p_target)
    line = f"target probability {probability}, rank {token.rank or 0:,}"
    if token.p_draft is not None:
        line += f"; draft probability {_format_probability(token.p_draft)}"
    if brief or not token.alternatives:
        return f"{line}."
    alternatives = ", ".join(
        f"{_quoted(each.text)} {_format_probability(each.p)} (rank {each.rank:,})"
        for each in token.alternatives
    )
    return f"{line}. Alternatives: {alternatives}"


def _round_line(token: Token, round_: Round, *, brief: bool) -> Content:
    guessed = "no guess"
    if round_.drafted:
        guessed = f"{round_.drafted} guessed, {round_.accepted} right"
    line = f"step {round_.n + 1} · {guessed}"
    if not brief:
        draft = milliseconds(round_.ms.draft)
        verify = milliseconds(round_.ms.verify)
        line += f" · draft {draft}, verify {verify} · id {token.id}"
    return Content.styled(line, "$muted")


def _format_probability(p: float) -> str:
    return "under 1 %" if p < 0.005 else percent(p)
