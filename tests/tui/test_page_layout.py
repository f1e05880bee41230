"""Pages begin at one column: the title, the rows below it and the keys."""

import pytest
from textual.containers import Vertical
from textual.widgets import Static

from localspec.tui.screens.chat import ChatScreen
from localspec.tui.widgets.screen_frame import PAGE_WIDTH, CenteredLayout
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.text_view import MAX_TEXT_WIDTH
from localspec.tui.widgets.transcript import Transcript
from tests.support.scenes import settled
from tests.tui.screen_rows import find_rows, show_widgets
from tests.tui.screen_states import STATES

PAGES = (
    "home-empty",
    "home-full",
    "home-chats",
    "home-chats-search",
    "home-keys",
    "home-preferences",
    "wizard-first",
    "wizard-second",
    "wizard-card",
    "doctor",
    "serve",
)
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
        rows = [row.replace("▸", " ") for row in find_rows(app.screen) if row.strip()]
    edge = MARGIN + max(0, size[0] - PAGE_WIDTH) // 2
    title, *_, keys = rows
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


CHATS = ("chat-empty", "chat-streaming", "chat-tokens", "chat-dead")


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
