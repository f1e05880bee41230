"""Pages begin at one column, and all that is on them can be read."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from rich.segment import Segment
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets._toast import Toast

from localspec.tui import themes
from localspec.tui.home_rows import HomeRow, draw_row
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.widgets.screen_frame import (
    PAGE_WIDTH,
    CenteredLayout,
    NotificationFloor,
)
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.text_view import MAX_TEXT_WIDTH
from localspec.tui.widgets.transcript import Transcript
from tests.support.long_cases import often
from tests.support.scenes import settled
from tests.support.scripted_engine import painted
from tests.tui.screen_rows import find_rows, show_widgets
from tests.tui.screen_states import STATES

PAGES = (
    "home-empty", "home-full", "home-chats", "home-chats-search", "home-keys", "home-preferences", "wizard-first", "wizard-second",
    "wizard-card", "doctor", "doctor-running", "serve", "bench", "home-search", "home-chats-none", "home-last-preferences",
)  # fmt: skip
MARGIN = 2


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
@pytest.mark.parametrize("name", PAGES)
async def test_title_rows_and_keys_begin_at_one_column(
    name: str, size: tuple[int, int]
) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=size) as pilot:
        await steps(pilot)
        all_rows = find_rows(app.screen)
    rows = [row.replace("▸", " ") for row in all_rows if row.strip()]
    below_title = all_rows[all_rows.index(rows[0]) + 1]
    edge = MARGIN + max(0, size[0] - PAGE_WIDTH) // 2
    title, *_, keys = rows
    assert not below_title.strip()
    assert len(title) - len(title.lstrip()) == edge
    assert len(keys) - len(keys.lstrip()) == edge
    assert min(len(row) - len(row.lstrip()) for row in rows) == edge


class CenteredColumn(CenteredLayout, Vertical):
    pass


@pytest.mark.parametrize("is_other_shown", [True, False])
async def test_a_column_keeps_its_place_whatever_stands_beside_it(
    *, is_other_shown: bool
) -> None:
    narrow = Static("text")
    narrow.styles.max_width = 40
    other = Static("wide")
    other.display = is_other_shown
    async with show_widgets(CenteredColumn(narrow, other), size=(200, 10)):
        assert narrow.region.x == (200 - 40) // 2


@pytest.mark.usefixtures("elsewhere")
async def test_the_message_field_has_one_place_in_empty_and_full_chats() -> None:
    columns = []
    for name in ("chat-empty", "chat-turns"):
        make, steps = STATES[name]
        app = make()
        async with app.run_test(size=(200, 50)) as pilot:
            await steps(pilot)
            chat = next(
                screen for screen in app.screen_stack if isinstance(screen, ChatScreen)
            )
            columns.append(chat.composer.region.x)
    assert columns[0] == columns[1]


CHATS = (
    "chat-empty",
    "chat-streaming",
    "chat-tokens",
    "chat-dead",
    "chat-loading",
    "chat-replay",
)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
@pytest.mark.parametrize("name", CHATS)
async def test_title_text_field_and_keys_of_a_chat_begin_at_one_column(
    name: str, size: tuple[int, int]
) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=size) as pilot:
        await steps(pilot)
        all_rows = find_rows(app.screen)
        rows = [row for row in all_rows if row.strip()]
        body = app.screen.query_one("#body").region
    edge = body.x + MARGIN
    assert not all_rows[1].strip()  # below the title
    assert {len(row) - len(row.lstrip()) for row in (rows[0], rows[-1])} == {edge}
    assert min(len(row) - len(row.lstrip()) for row in rows) == edge
    assert abs(body.x - (size[0] - body.right)) <= 1  # centred


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("width", [80, 120, 160, 200, 300])
async def test_the_panel_is_beside_the_text_at_any_width(width: int) -> None:
    make, steps = STATES["chat-streaming"]
    app = make()
    async with app.run_test(size=(width, 30)) as pilot:
        await steps(pilot)
        panel = app.screen.query_one(SpeculationPanel)
        if not panel.display:
            await pilot.press("f3")
            await settled(pilot)
        transcript = app.screen.query_one(Transcript)
        n_blank = transcript.size.width - 2 * MARGIN - MAX_TEXT_WIDTH
        assert panel.region.x == transcript.region.right
        assert n_blank <= 0


# --- what a person can read
# ------------------------------------------------------------------------------------

LEAST_CONTRAST = 4.5
READ = (
    *PAGES,
    "home-damaged-preferences",
    "wizard-third",
    "welcome",
    "chat-empty",
    "chat-loading",
)
OFTEN_READ = (
    "home-chats",
    "home-preferences",
    "wizard-second",
    "chat-loading",
    "bench",
)


def find_segments(screen: Screen[Any]) -> Iterator[Segment]:
    return itertools.chain(*screen._compositor.render_strips())


def find_pale_text(screen: Screen[Any]) -> set[str]:
    """Words whose contrast to what is behind them is too small."""
    pale: set[str] = set()
    for segment in find_segments(screen):
        style = segment.style
        if style is None or style.color is None or style.bgcolor is None:
            continue
        if not any(character.isalnum() for character in segment.text):
            continue
        text = Color.from_rich_color(style.color)
        ground = Color.from_rich_color(style.bgcolor)
        if themes.contrast(text, ground) < LEAST_CONTRAST:
            pale.add(segment.text.strip())
    return pale


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "theme", ["localspec-dark", "localspec-light", "high-contrast", "dracula"]
)
@pytest.mark.parametrize(
    "name", often([name for name in READ if name != "wizard-card"], OFTEN_READ)
)
async def test_every_word_of_a_page_can_be_read_in_every_theme(
    name: str, theme: str
) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=(120, 40)) as pilot:
        await steps(pilot)
        app.theme = theme
        await settled(pilot)
        assert find_pale_text(app.screen) == set()


@pytest.mark.usefixtures("elsewhere")
async def test_a_screen_without_colours_shows_its_cursor_and_colours_no_code() -> None:
    make, steps = STATES["chat-monochrome"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        segments = list(find_segments(app.screen))
    grounds = set()
    for segment in segments:
        style = segment.style
        if style is None or style.color is None or style.bgcolor is None:
            continue
        text = Color.from_rich_color(style.color)
        ground = Color.from_rich_color(style.bgcolor)
        assert text.r == text.g == text.b, segment.text
        grounds.add(text if style.reverse else ground)
    assert Color(255, 255, 255) in grounds  # the block of the cursor


NOTIFIED = ("home-offline", "home-keys", "chat-toast")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("name", NOTIFIED)
async def test_a_notification_covers_neither_the_message_nor_the_help(
    name: str, size: tuple[int, int]
) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=size, notifications=True) as pilot:
        await steps(pilot)
        (toast,) = app.screen.query(Toast)
        floors = [
            widget
            for widget in app.screen.query("*")
            if isinstance(widget, NotificationFloor)
        ]
        assert floors
        assert toast.region.height
        for floor in floors:
            assert not floor.region.overlaps(toast.region)


def find_cut_lines(screen: Screen[Any]) -> list[str]:
    """Lines that are wider than their place, and neither wrapped nor ended by …"""
    cut: list[str] = []
    for widget in screen.query("*"):
        if not widget.is_on_screen or not widget.size.width:
            continue
        lines: list[Content] = []
        width = widget.content_size.width
        if isinstance(widget, OptionList):
            width -= 2  # Where ▸ hangs.
            for option in widget.options:
                prompt = option.prompt
                lines += prompt.split("\n") if isinstance(prompt, Content) else []
        elif isinstance(widget, Static):
            content = widget.render()
            lines += content.split("\n") if isinstance(content, Content) else []
        is_wrapped = widget.styles.text_wrap == "wrap"
        has_ellipsis = widget.styles.text_overflow == "ellipsis"
        if is_wrapped or has_ellipsis:
            continue
        cut += [line.plain for line in lines if line.rstrip().cell_length > width]
    return cut


NARROW = (
    "home-full",
    "home-search",
    "home-names",
    "home-downloads",
    "home-chats",
    "wizard-second",
    "wizard-third",
    "doctor",
    "serve",
)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", NARROW)
async def test_no_line_of_a_page_is_cut_without_an_ellipsis(
    name: str, width: int
) -> None:
    make, steps = STATES[name]
    app = make()
    async with app.run_test(size=(width, 24)) as pilot:
        await steps(pilot)
        assert find_cut_lines(app.screen) == []


@pytest.mark.usefixtures("elsewhere")
async def test_the_line_of_a_load_has_its_bar_and_its_share() -> None:
    """The name of the file is cut, however long it is."""
    make, steps = STATES["chat-loading"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        (row,) = [row for row in find_rows(app.screen) if "Loading the model" in row]
    assert "a-model-of-many" in row
    assert "…   ██████████" in row
    assert " 50 %" in row


@pytest.mark.usefixtures("elsewhere")
async def test_a_card_that_fits_without_blank_lines_has_no_scroll_bar() -> None:
    make, steps = STATES["wizard-third"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        assert app.screen.query_one("#card").max_scroll_y == 0


@pytest.mark.usefixtures("elsewhere")
async def test_facts_that_do_not_fit_beside_a_pair_are_left_out_whole() -> None:
    make, steps = STATES["wizard-third-other-draft"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        (row,) = [row for row in find_rows(app.screen) if "to download" in row]
    assert row.endswith("6.9 GB to download")


@pytest.mark.usefixtures("elsewhere")
async def test_a_list_without_a_match_says_so() -> None:
    make, steps = STATES["chat-picker"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        assert "No name in the list has these letters." in painted(app.screen)


@pytest.mark.usefixtures("elsewhere")
async def test_a_search_lists_no_download_that_does_not_match() -> None:
    make, steps = STATES["home-search"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        shown = painted(app.screen)
    assert "Search the hub" in shown
    assert "No match on this computer" in shown
    assert "Qwen3" not in shown


@pytest.mark.usefixtures("elsewhere")
async def test_no_chat_no_keys_of_a_chat() -> None:
    make, steps = STATES["home-chats-none"]
    app = make()
    async with app.run_test(size=(120, 24)) as pilot:
        await steps(pilot)
        await pilot.press("tab")
        await settled(pilot)
        keys = find_rows(app.screen)[-1]
        assert "0 matches" in painted(app.screen)
    assert "rename" not in keys
    assert "esc back" in keys


@pytest.mark.usefixtures("elsewhere")
async def test_a_wrong_setting_is_explained_in_the_colour_of_errors() -> None:
    make, steps = STATES["chat-wrong-setting"]
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await steps(pilot)
        line = app.screen.query_one("#wrong", Static)
        assert "zz" in str(line.render())
        assert line.styles.color == Color.parse(app.theme_variables["error"])


@pytest.mark.parametrize("width", [80, 100, 109, 110, 120, 200])
def test_the_sizes_of_all_kinds_of_rows_end_in_one_column(width: int) -> None:
    rows = (
        HomeRow("a chat", "a model", "12 turns", chat_id=1, note="2023-11-14"),
        HomeRow("a pair", "chat, code", "6.0 GB", speed="≈ 91 tok/s"),
        HomeRow("one without a speed", "+ draft", "14.3 GB"),
    )
    ends = {draw_row(row, width).plain.index(row.size) + len(row.size) for row in rows}
    assert len(ends) == 1
