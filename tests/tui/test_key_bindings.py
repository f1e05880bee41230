"""The key table is the source of bindings, help and footers."""

from collections import Counter
from typing import get_args

from textual.binding import Binding

from localspec.tui import key_bindings
from localspec.tui.key_bindings import KEY_BINDINGS, KeyContext


def test_every_key_has_an_id_of_its_own() -> None:
    assert max(Counter(key.id for key in KEY_BINDINGS).values()) == 1


def test_no_two_actions_share_a_key_where_both_are_heard() -> None:
    together: tuple[tuple[KeyContext, ...], ...] = (
        ("app", "home"), ("app", "wizard"), ("app", "chat", "composer"), ("app", "chat", "tokens"),
        ("app", "replay"), ("app", "measuring"),
    )  # fmt: skip
    for places in together:
        taken = Counter(
            one for k in KEY_BINDINGS if k.context in places for one in k.keys.split(",")
        )
        twice = {key for key, n in taken.items() if n > 1}
        assert twice <= {"escape", "tab"}, f"{places}: {twice}"  # the token view's own comes first


def test_bindings_carry_their_ids_so_that_they_can_be_changed() -> None:
    for place in get_args(KeyContext):
        for binding in key_bindings.bindings_for(place):
            assert isinstance(binding, Binding) and binding.id


def test_a_footer_shows_a_persons_own_keys() -> None:
    assert key_bindings.format_footer({}, "composer").startswith("enter send")
    assert key_bindings.format_footer({"chat.send": "ctrl+s"}, "composer").startswith("ctrl+s send")


def test_the_way_out_is_the_last_hint_to_go() -> None:
    """While an answer was written, a narrow chat did not say how to stop it."""
    hints = "enter send  ctrl+j newline  esc stop  f2 tokens"
    shown = {width: key_bindings.fit_footer(hints, width) for width in (99, 40, 25, 20, 9, 3, -5)}
    assert list(shown.values()) == [
        hints,
        "enter send  ctrl+j newline  esc stop",
        "enter send  esc stop",
        "enter send  esc stop",
        "esc stop",
        "",
        "",
    ]


def test_keys_that_do_the_same_stand_together() -> None:
    assert "←→ token" in key_bindings.format_footer({}, "tokens")
