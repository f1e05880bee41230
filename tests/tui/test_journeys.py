"""Journeys from start to quit in a real terminal, by the keyboard alone.

docs/tour.md shows the first.
"""

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("there is no tmux", allow_module_level=True)

import psutil

from localspec import paths
from localspec.report.token_classes import TOKEN_CLASSES
from tests.support.downloads import wait_for
from tests.support.fake_hub import FakeHub
from tests.support.long_cases import often
from tests.support.tmux import ENTER, ESCAPE, PROMPT, Tmux
from tests.support.zoo import Zoo
from tests.tui.test_terminal import gone

GREETING = "f1: help"
"""Shown in an empty chat once the pair is loaded."""
HOME = "Ready to run"
PAIR = "chatty-pair"
TITLE = "Tiny"
"""What every screen calls the target."""
TARGET = "tiny/Chatty-GGUF"
DRAFT = "tiny/Draft-GGUF"
FILES = ("chatty-F16.gguf", "draft-F16.gguf")
# The target has many layers, so that a draft is expected to gain.
CATALOGUE = f"""\
schema: 1
models:
  - {{id: chatty, title: {TITLE}, repo: {TARGET}, file: {FILES[0]}, bytes: 3000000000, family: tiny,
     architecture: llama, parameters: 900B, tier: current, use: [chat],
     shape: {{layers: 30, embd: 1024, ff: 4096, heads: 16, kv_heads: 4, vocab: 300, source: a test}}}}
  - {{id: chatty-draft, title: Tiny draft, repo: {DRAFT}, file: {FILES[1]}, bytes: 100000000, family: tiny,
     architecture: llama, parameters: 1B, tier: current, use: [chat],
     shape: {{layers: 1, embd: 1024, ff: 4096, heads: 16, kv_heads: 4, vocab: 300, source: a test}}}}
pairs:
  - {{id: {PAIR}, target: chatty, draft: chatty-draft}}
"""
SIZES = often({"80x24": (80, 24), "120x40": (120, 40)}, ("80x24",))


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a tiny chat model, which the catalogue calls far the best."""
    own = tmp_path / "config" / "models.yaml"
    own.parent.mkdir()
    own.write_text(CATALOGUE)
    with FakeHub() as hub:
        hub.add(TARGET, FILES[0], zoo["chatty"].read_bytes())
        hub.add(DRAFT, FILES[1], zoo["chatty"].read_bytes())
        monkeypatch.setenv("LOCALSPEC_CONFIG", str(own.with_name("config.toml")))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        yield hub


def ask(tmux: Tmux, text: str) -> str:
    """Waits for the line under the answer."""
    tmux.type(text)
    tmux.press(ENTER)
    end = re.compile(r"\d tokens?( in \d+ steps?)? · ")
    return tmux.wait_for(lambda seen: end.search(seen.rpartition(text)[2]) is not None)


def press_and_see_change(tmux: Tmux, *keys: str) -> None:
    before = tmux.coloured
    tmux.press(*keys)
    tmux.wait_for(lambda _: tmux.coloured != before)


def round_number(screen: str) -> int:
    """The step of the selected token; 0 without one."""
    found = re.search(r"step (\d+) ·", screen)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("hub")
def test_the_tour_from_the_first_screen_to_quit(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    with Tmux(size, tmp_path / "data", first=True) as tmux:
        tmux.run()
        first_screen(tmux)
        choose_pair(tmux)
        download(tmux, tmp_path / "hub")
        chat_once(tmux)
        look_back(tmux)
        engines = bench(tmux)
        assert gone(engines)
        preferences(tmux)
        wait_for(lambda: len(running(tmux)) == 1)  # At Home only the app runs.
        (app,) = running(tmux)
        quit_app(tmux)
        assert gone([app])
        assert not running(tmux)


def running(tmux: Tmux) -> list[psutil.Process]:
    return psutil.Process(int(tmux.asks("#{pane_pid}"))).children(recursive=True)


def back_home(tmux: Tmux, *seen: str | Callable[[str], object]) -> None:
    """Waits until the list has the keyboard."""
    tmux.leave_chat(HOME)
    tmux.wait_for(HOME, "▸ Demo", *seen)


def is_suggested(seen: str) -> bool:
    return TITLE in seen.partition("not downloaded")[2]


def is_ready(seen: str) -> bool:
    return TITLE in seen.partition("not downloaded")[0]


def first_screen(tmux: Tmux) -> None:
    words = ("Chat with models", "enter", "find a model", "skip")
    tmux.wait_for(lambda now: "billion" in now or "Little memory" in now, *words)
    back_home(tmux, is_suggested, "w wizard")


def choose_pair(tmux: Tmux) -> None:
    """What for, which one, and what it would be like."""
    tmux.press("w")
    tmux.wait_for("1 of 3", "chat", "code", "writing", "documents")
    tmux.press("1")
    tmux.wait_for(f"▸ {TITLE}", "2 of 3")
    tmux.press(ENTER)
    words = ("✓ vocabularies match", "Memory", "Speed", "3.1 GB to download")
    tmux.wait_for("3 of 3", *words)


def download(tmux: Tmux, cache: Path) -> None:
    tmux.press(ENTER)
    tmux.wait_for("too large to gain much")  # It was not known before.
    tmux.press(ENTER)
    tmux.wait_for(GREETING, lambda seen: TITLE in seen.splitlines()[0])
    here = [path.name for path in cache.glob("models--*/snapshots/*/*.gguf")]
    assert sorted(here) == sorted(FILES)


def chat_once(tmux: Tmux) -> None:
    # A draft as large as its target would not draft by itself.
    tmux.type("/spec model")
    tmux.press(ENTER)
    ask(tmux, "Hello")
    words = ("Anything else?", "You", "return 2 * x")
    seen = tmux.wait_for(*words, has_panel_or_cell)
    assert "```" not in seen


def has_panel_or_cell(seen: str) -> bool:
    """What speculation gives is in the last line where the panel has no room."""
    return "Tokens per step" in seen or re.search(r"\d+ of \d+ right", seen) is not None


def look_back(tmux: Tmux) -> None:
    """The cursor goes from the last token back to one that was guessed, and on by rounds."""
    tmux.press("Tab")
    tmux.wait_for("↑↓ round")
    while TOKEN_CLASSES["accepted"].description not in tmux.screen:
        press_and_see_change(tmux, "Left")
    number = round_number(
        tmux.wait_for(TOKEN_CLASSES["accepted"].description, round_number)
    )
    tmux.press("Up", "Up")
    tmux.wait_for(lambda seen: 0 < round_number(seen) < number)
    tmux.press(ESCAPE)
    tmux.wait_for("enter send")
    back_home(tmux, "1 turn", is_ready, are_downloads_verified)


def are_downloads_verified(seen: str) -> bool:
    """They are only shown where there is room."""
    return "✓ verified" in seen or "Downloads" not in seen


def has_first_answer(seen: str) -> bool:
    return bool(re.search(r"\d+ of \d+ answers, about", seen)) and "tok/pass" in seen


def bench(tmux: Tmux) -> list[psutil.Process]:
    """Of the demo, until the first answer is there; returns what ran for it."""
    tmux.press("b")
    tmux.wait_for("answers of 64 tokens")
    tmux.press(ENTER)
    tmux.wait_for(has_first_answer)
    engines = running(tmux)[1:]
    assert engines
    tmux.press(ESCAPE)
    tmux.wait_for("stopped", "Interrupted: partial results.")
    back_home(tmux)
    return engines


def preferences(tmux: Tmux) -> None:
    tmux.press("F10")
    tmux.wait_for("‹ localspec-dark ›")
    tmux.press("Right")
    tmux.wait_for('screen.theme = "localspec-light"')
    written = tomllib.loads(paths.config_file().read_text())
    assert written == {"screen": {"theme": "localspec-light"}}
    back_home(tmux)
    tmux.press("F10")
    tmux.wait_for(lambda seen: re.search("‹ localspec-light ›.* config.toml", seen))
    back_home(tmux)


def quit_app(tmux: Tmux) -> None:
    tmux.press("C-q")
    tmux.wait_for(PROMPT.strip())
    tmux.type("echo left with $?")
    tmux.press(ENTER)
    tmux.wait_for("\nleft with 0")


def test_in_tmux_an_answer_is_copied_to_its_buffer(tmp_path: Path) -> None:
    """tmux passes it to the terminal itself."""
    with Tmux((80, 24), tmp_path) as tmux:
        tmux.run()
        tmux.wait_for(HOME)
        tmux.press(ENTER)
        tmux.wait_for(GREETING)
        ask(tmux, "def f(a):")
        tmux.press("C-o")
        tmux.wait_for("Copied")
        lines = [line.strip() for line in tmux.buffer.splitlines() if line.strip()]
        # Not all of a long answer is in sight.
        assert any(line in tmux.screen for line in lines)
