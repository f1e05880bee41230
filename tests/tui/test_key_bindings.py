"""The key table is the source of bindings, help and footers."""

from collections import Counter
from typing import get_args

import pytest
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, Keys

from localspec.config import key_table
from localspec.config.key_table import KEY_BINDINGS, KeyContext
from localspec.tui import key_bindings
from localspec.tui.key_bindings import find_key_hint


def test_keys_of_the_file() -> None:
    valid = key_table.validate_user_keys
    assert max(Counter(key.id for key in KEY_BINDINGS).values()) == 1
    for key in KEY_BINDINGS:
        assert not key_table.check_keys(key.id, key.keys, {})
    for place in get_args(KeyContext):
        for binding in key_bindings.bindings_for(place):
            assert isinstance(binding, Binding) and binding.id
    assert valid({"chat.panel": "f2", "chat.tokens": "f3"})[1] == ()  # changed places
    both = {"doctor.repair": "m", "doctor.mend": "k", "bench.save": "s"}
    assert valid(both) == ({"doctor.repair": "m"}, ())


def test_no_two_actions_share_a_key_where_both_are_heard() -> None:
    together: tuple[tuple[KeyContext, ...], ...] = (
        ("app", "home"), ("app", "chats"), ("app", "wizard"), ("app", "chat", "composer"), ("app", "chat", "tokens"),
        ("app", "replay"), ("app", "measuring"),
    )  # fmt: skip
    for places in together:
        taken = Counter(
            one
            for k in KEY_BINDINGS
            if k.context in places
            for one in k.keys.split(",")
        )
        twice = {key for key, n in taken.items() if n > 1}
        # the token view's own comes first
        assert twice <= {"escape", "tab"}, f"{places}: {twice}"


def test_a_footer_shows_a_persons_own_keys() -> None:
    assert key_bindings.format_footer({}, "composer").startswith("enter send")
    assert key_bindings.format_footer({"chat.send": "ctrl+s"}, "composer").startswith(
        "ctrl+s send"
    )
    assert "←→ token" in key_bindings.format_footer({}, "tokens")


def test_the_way_out_is_the_last_hint_to_go() -> None:
    hints = "enter send  ctrl+j newline  esc stop  f2 colours"
    shown = [
        key_bindings.fit_footer(hints, width) for width in (99, 40, 25, 20, 9, 3, -5)
    ]
    both = "enter send  esc stop"
    assert shown == [
        hints,
        "enter send  ctrl+j newline  esc stop",
        both,
        both,
        "esc stop",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("x", "key"),
    [
        (0, "enter"),
        (8, "enter"),
        (12, "left"),
        (13, "right"),
        (16, "right"),
        (24, "escape"),
    ],
)
def test_which_key_a_hint_shows(x: int, key: str) -> None:
    assert find_key_hint("enter send  ←→ change  esc back", x) == key
    assert find_key_hint("ctx 28 / 8.2k   / find", 18) == "slash"
    assert find_key_hint("ctx 28 / 8.2k", 2) == ""


def test_the_table_knows_the_names_of_keys_that_textual_has() -> None:
    for name in (key.value for key in Keys):
        is_a_key = not name.startswith("<") and name != "ctrl-at"
        assert key_table.is_key_name(name) is is_a_key, name
    for name in (*KEY_TO_UNICODE_NAME, *KEY_NAME_REPLACEMENTS.values(), "a", "$"):
        assert key_table.is_character_key(name), name
    for name in ("f1", "pageup", "alt+a", "enter"):
        assert not key_table.is_character_key(name), name
    for name in ("", "f25", "ctrl+", "no_such_key"):
        assert not key_table.is_key_name(name), name
