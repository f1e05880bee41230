"""The look of the token classes, as the terminal and the app render it."""

from typing import get_args

import pytest

from localspec.cli import report_printer
from localspec.protocol.events import Round, RoundTimes, Token, TokenClass
from localspec.report.answer_stats import format_round
from localspec.report.lines import plain_text
from localspec.report.token_classes import (
    TOKEN_CLASSES,
    format_legend,
    mark_text,
    mark_token,
)
from localspec.tui.text.report_content import role_style


def test_every_class_has_a_look_of_its_own() -> None:
    assert set(TOKEN_CLASSES) == set(get_args(TokenClass))
    looks = list(TOKEN_CLASSES.values())
    assert len({look.mark for look in looks}) == len(looks)
    assert len({look.attributes for look in looks}) == len(looks)


def test_a_mark_goes_before_trailing_white_space() -> None:
    assert plain_text(mark_text("word\n", "accepted")) == "wordˢ\n"
    assert plain_text(mark_text("word", "plain")) == "word·"
    assert mark_text("", "plain") == ()


def test_a_marked_token_is_sanitized() -> None:
    hostile = Token(1, "red\x1b[31m", "bonus")
    assert "\x1b" not in plain_text(mark_token(hostile))


def test_the_legend_shows_each_class_as_its_tokens_look() -> None:
    marked = plain_text(format_legend(with_marks=True))
    unmarked = plain_text(format_legend(with_marks=False))
    assert marked == "guessed rightˢ   written by the model⁺·   written instead▔"
    assert unmarked == "guessed right   written by the model   written instead"


@pytest.mark.parametrize("token_class", get_args(TokenClass))
def test_colour_and_marks_are_never_both_there(token_class: TokenClass) -> None:
    """In the legend, in a token, and in a round of a replay."""
    marks = {look.mark for look in TOKEN_CLASSES.values()}
    token = Token(1, "word", token_class)
    round_ = Round(0, "model", "", 2, 1, (token,), RoundTimes(0.0, 1.0, 0.0))
    coloured = [
        format_legend(with_marks=False),
        mark_token(token, is_coloured=True),
        format_round(round_, is_coloured=True),
    ]
    for line in coloured:
        assert marks.isdisjoint(plain_text(line))
    for line in (mark_token(token), format_round(round_)):
        assert TOKEN_CLASSES[token_class].mark in plain_text(line)


@pytest.mark.parametrize("token_class", ["bonus", "plain"])
def test_what_the_model_wrote_has_no_colour_of_its_own(token_class: TokenClass) -> None:
    line = mark_text("word", token_class)
    assert report_printer.render_line(line, colour=True) == plain_text(line)


@pytest.mark.parametrize("token_class", ["accepted", "correction"])
def test_the_terminal_colours_what_it_marks(token_class: TokenClass) -> None:
    line = mark_text("word", token_class)
    coloured = report_printer.render_line(line, colour=True)
    assert coloured.startswith("\x1b[") and plain_text(line) in coloured
    assert report_printer.render_line(line, colour=False) == plain_text(line)


def test_the_app_draws_the_attributes_that_it_can() -> None:
    assert role_style("accepted") == "$accepted underline"
    assert role_style("correction") == "$corrected italic"
    assert role_style("plain") == ""
