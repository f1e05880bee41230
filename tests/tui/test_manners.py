"""Details: hints for the current state, line breaks, plain ASCII."""

from __future__ import annotations

import pytest
from rich.style import Style

from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.glyphs import ASCII
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.text.blocks import KeyHints
from localspec.tui.widgets.token_details import LEGEND
from tests.support import scenes
from tests.support.scenes import CODE, QUESTION, asking, streaming, surveyed, walking
from tests.support.scripted_engine import painted, wait_until

pytestmark = pytest.mark.asyncio

THINKING = ("<think>", "</think>")


def on(app: LocalspecApp) -> ChatScreen:
    screen = app.screen
    assert isinstance(screen, ChatScreen)
    return screen


async def test_tab_leads_to_the_tokens_and_back() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(CODE)(pilot)
        await pilot.press("tab")
        assert (
            on(app).composer.has_focus and not on(app).transcript.is_cursor_active
        )  # nothing is shown
        await pilot.press("f2", "escape")
        assert on(app).composer.has_focus
        assert "tab select token" in painted(app.screen)
        await pilot.press("tab")
        assert on(app).transcript.is_cursor_active
        assert "round" in painted(app.screen) and "→ token" in painted(app.screen)
        await pilot.press("tab")
        assert on(app).composer.has_focus


async def test_esc_stops_only_what_runs() -> None:
    app = scenes.chat(scenes.held)
    async with app.run_test(size=(120, 30)) as pilot:
        await streaming(pilot)
        assert "esc stop" in painted(app.screen)
        assert "first token" not in painted(app.screen)
        await pilot.press("escape")
        await wait_until(pilot, lambda: on(app).phase == "ready")
        await wait_until(pilot, lambda: "esc back" in painted(app.screen))
        assert "esc stop" not in painted(app.screen)


async def test_an_answer_is_finished_only_where_there_is_one() -> None:
    app = scenes.refused()
    async with app.run_test(size=(80, 24)) as pilot:
        await scenes.failed(pilot)
        assert "enter reload ctrl+l engine log esc back" in painted(app.screen)
        assert "finish the answer" not in painted(app.screen)
    app = scenes.chat(scenes.dying)
    async with app.run_test(size=(80, 24)) as pilot:
        await asking()(pilot)
        assert "f5 reload and finish the answer" in painted(app.screen)


@pytest.mark.parametrize("width", [10, 24, 40, 80])
async def test_a_hint_is_not_cut_in_two(width: int) -> None:
    keys = ("f6 edit the message", "f4 settings", "ctrl+l engine log")
    part = KeyHints(keys, "| ")
    lines = [part.line(y, LOOKS)[1].text for y in range(part.height(width))]
    assert "   ".join(lines).split("   ") == list(keys)
    assert all(len(line) <= max(width - 2, *map(len, keys)) for line in lines)


LOOKS = {"error": Style(), "muted": Style()}


async def test_one_empty_line_between_thinking_and_answer() -> None:
    app = scenes.chat(scenes.thought, thinking=THINKING)
    async with app.run_test(size=(100, 30)) as pilot:
        await asking(QUESTION)(pilot)
        for _ in range(2):
            lines = [line.strip() for line in on(app).transcript.plain_text.splitlines()]
            last = lines.index("Use append.")
            assert lines[last - 1] == "" and lines[last - 2] != ""
            await pilot.press("ctrl+t")


async def test_a_long_topic_shows_that_it_was_cut() -> None:
    app = scenes.chat(scenes.spoken)
    async with app.run_test(size=(80, 24)) as pilot:
        await asking("What would you say to somebody who asks you the longest question of all?")(
            pilot
        )
        title = app.screen._compositor.render_strips()[0].text
        assert title.rstrip().endswith("…")


async def test_the_strip_of_a_short_terminal_keeps_its_legend() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(60, 20)) as pilot:
        await walking(*["up"] * 8, "left")(pilot)
        await pilot.resize_terminal(60, 15)
        await pilot.press("left", "right")
        await pilot.pause()
        shown = painted(app.screen)
        assert all(label in shown for label, _ in LEGEND.values())
        assert "rank 1" in shown and "round" in shown and "Alternatives" not in shown


async def test_details_of_a_token_are_not_cut_in_a_narrow_terminal() -> None:
    app = scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False)
    async with app.run_test(size=(60, 24)) as pilot:
        await walking(*["up"] * 8, "left")(pilot)
        shown = painted(app.screen)
        assert "Alternatives" in shown and "id 5" in shown
        assert all(label in shown for label, _ in LEGEND.values())


@pytest.mark.parametrize("where", ["home", "opening", "chat", "help", "settings", "failure"])
async def test_ascii_means_ascii(where: str) -> None:
    """Also borders, bars and scrollbars."""
    options = AppOptions(seed=1, glyphs=ASCII, colour=False)
    app = scenes.chat(
        scenes.dying if where == "failure" else lambda: scenes.spoken(scenes.COMPLETED),
        chats=False,
        glyphs=ASCII,
        colour=False,
    )
    if where in ("home", "opening"):
        app = scenes.home(options, scenes.Still())
    async with app.run_test(size=(100, 24)) as pilot:
        if where in ("home", "opening"):
            await surveyed(pilot)
            await pilot.press(*{"opening": ["o"]}.get(where, []))
        else:
            await asking(CODE)(pilot)
            await pilot.press({"help": "f1", "settings": "f4"}.get(where, "f2"))
        await pilot.pause()
        text = "".join(strip.text for strip in app.screen._compositor.render_strips())
        odd = {letter for letter in text if not letter.isascii()} - set("大規模言語モデル七十億")
        assert not odd
