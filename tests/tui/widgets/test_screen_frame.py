"""The last line of a chat: keys are not pushed out by figures."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.tui.widgets.screen_frame import StatusParts, arrange_status

KEYS = (
    "enter send",
    "ctrl+j newline",
    "esc back",
    "f2 colours",
    "f3 panel",
    "f4 settings",
    "f5 regenerate",
    "f1 keys",
    "ctrl+q quit",
)
VITAL = ("esc back", "f1 keys", "enter send", "f2 colours", "f3 panel")
LATE = ("ctrl+j newline", "ctrl+q quit")
FIGURES = ("ctx 118 / 8.2k", "reused 8", "first token 2.2 s")
CELLS = ("1.7× faster  25 of 32", "1.7× faster")


def parts_of(
    notes: tuple[str, ...] = (), cells: tuple[str, ...] = CELLS
) -> StatusParts:
    return StatusParts(KEYS, VITAL, LATE, notes, cells, FIGURES)


def test_at_80_columns_the_gain_is_beside_the_keys() -> None:
    keys, right = arrange_status(parts_of(), 76)
    assert keys == "enter send  esc back  f2 colours  f3 panel  f1 keys"
    assert right == "1.7× faster  25 of 32"


def test_where_the_panel_has_the_gain_the_context_is_shown() -> None:
    keys, right = arrange_status(parts_of(cells=()), 116)
    assert "f4 settings  f5 regenerate  f1 keys" in keys
    assert right == "ctx 118 / 8.2k"


def test_where_there_is_room_everything_is_shown() -> None:
    keys, right = arrange_status(parts_of(), 196)
    assert keys == "  ".join(KEYS)
    assert right == "   ".join([CELLS[0], *FIGURES])


LONG_NOTES = st.lists(st.text("ab 漢", min_size=1, max_size=60), max_size=2)


@given(st.integers(0, 220), LONG_NOTES, st.sampled_from([(), CELLS, CELLS[1:]]))
def test_figures_give_way_first_and_the_way_out_and_the_help_never(
    width: int, notes: list[str], cells: tuple[str, ...]
) -> None:
    parts = parts_of(tuple(notes), cells)

    keys, right = arrange_status(parts, width)

    assert cell_len(f"{keys}{right}") <= width
    shown = keys.split("  ")
    others = {*KEYS} - {*LATE}
    if any(figure in right for figure in FIGURES):
        assert others <= {*shown}
    if any(figure in right for figure in FIGURES[1:]):
        assert {*KEYS} <= {*shown}
    if width >= len("esc back  f1 keys"):
        assert {"esc back", "f1 keys"} <= {*shown}
    if not notes and width >= 51:
        assert {*VITAL} <= {*shown}
