"""Pictures of the screens, each looked at before it was accepted: see CONTRIBUTING.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.tui.glyphs import ASCII
from localspec.tui.screens.opening import OpeningScreen
from localspec.tui.themes import MONOCHROME
from tests.tui import scenes
from tests.tui.scenes import Steps, asking, walking
from tests.tui.scripted import painted, wait_until
from tests.zoo import Zoo

pytestmark = pytest.mark.pictures

Compare = Callable[..., bool]
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "60x15": (60, 15)}
EACH_SIZE = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)

TO_A_CORRECTION = ("up",) * 8 + ("left",)


async def nothing(_: Pilot[Any]) -> None:
    """As it comes."""


def pressed(*keys: str) -> Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)

    return steps


@EACH_SIZE
def test_home_empty(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(scenes.home(), terminal_size=size)


@EACH_SIZE
def test_home_with_pairs(
    snap_compare: Compare, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names, wide characters, a target without a draft; one stands on the last of them."""
    monkeypatch.chdir(tmp_path)
    opened_before()
    keys = pressed("down", "down", "down")
    assert snap_compare(scenes.home(), terminal_size=size, run_before=keys)


def opened_before() -> None:
    names = {
        "models/qwen3-8b-instruct-2507-q4_k_m.gguf": "models/qwen3-0.6b-q8_0.gguf",
        "models/大規模言語モデル-七十億-第二版-指示調整済み.gguf": "models/小さな下書き.gguf",
        "models/llama-3.2-1b.gguf": None,
    }
    Path("models").mkdir()
    for name in [*names, *filter(None, names.values())]:
        Path(name).write_bytes(b"GGUF")
    state = Path("data")
    state.mkdir(exist_ok=True)
    pairs = [{"target": target, "draft": draft} for target, draft in names.items()]
    (state / "recent.json").write_text(json.dumps(pairs), encoding="utf-8")


CHATS: dict[str, tuple[Callable[[], App[None]], Steps]] = {
    "empty": (lambda: scenes.chat(scenes.spoken), scenes.opened),
    "streaming": (lambda: scenes.chat(scenes.held), scenes.streaming),
    "tokens": (
        lambda: scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False),
        walking(*TO_A_CORRECTION),
    ),
    "dead": (lambda: scenes.chat(scenes.dying), asking()),
    "unicode": (lambda: scenes.chat(lambda: scenes.spoken(scenes.ANYTHING)), asking("漢字とは？")),
}


@EACH_SIZE
@pytest.mark.parametrize("what", CHATS)
def test_chat(snap_compare: Compare, size: tuple[int, int], what: str) -> None:
    app, steps = CHATS[what]
    assert snap_compare(app(), terminal_size=size, run_before=steps)


# --- the rest, once each ----------------------------------------------------------------------


def completing(**options: Any) -> App[None]:
    return scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False, **options)


async def dialog(pilot: Pilot[Any]) -> None:
    """A target and a draft that do not go together."""
    await pilot.press("o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, OpeningScreen))
    for name, field in (("models/llama-3.2-1b.gguf", "#target"), ("models/小さな.gguf", "#draft")):
        pilot.app.screen.query_one(field, Input).value = name
        await pilot.press("enter")
    await wait_until(pilot, lambda: "✗" in painted(pilot.app.screen))
    await pilot.pause()


ONCE: dict[str, tuple[Callable[[], App[None]], Steps]] = {
    "refused": (scenes.refused, scenes.failed),
    "settings": (lambda: scenes.chat(scenes.spoken), asking(scenes.QUESTION, "f4", "down")),
    "help": (lambda: scenes.chat(scenes.spoken), asking(scenes.QUESTION, "f1")),
    "replay": (completing, asking(scenes.CODE, "f7", *["right"] * 5)),
    "thinking": (
        lambda: scenes.chat(scenes.thought, thinking=("<think>", "</think>")),
        asking(scenes.QUESTION, "ctrl+t"),
    ),
    "ascii": (lambda: completing(colour=False, glyphs=ASCII), walking(*TO_A_CORRECTION)),
    "monochrome": (lambda: completing(theme=MONOCHROME), walking(*TO_A_CORRECTION)),
    "contrast": (lambda: completing(theme="high-contrast"), walking(*TO_A_CORRECTION)),
    "light": (lambda: completing(theme="localspec-light"), walking(*TO_A_CORRECTION)),
}


@pytest.mark.parametrize("what", ONCE)
def test_once(snap_compare: Compare, what: str) -> None:
    app, steps = ONCE[what]
    assert snap_compare(app(), terminal_size=(110, 30), run_before=steps)


def test_opening(
    snap_compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zoo: Zoo
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for name in ("llama-3.2-1b.gguf", "小さな.gguf"):
        Path("models", name).symlink_to(zoo["f32"])
    assert snap_compare(scenes.home(), terminal_size=(80, 24), run_before=dialog)
