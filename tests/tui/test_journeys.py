"""Journeys from start to quit, keyboard only, in a real terminal; docs/tour.md shows
the first.
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
from tests.support.tmux import ENTER, ESCAPE, PROMPT, Tmux, context
from tests.support.zoo import Zoo
from tests.tui.test_terminal import gone

GREETING = "f2: token view"
"""Shown in an empty chat once the pair is loaded."""
HOME = "Ready to run"
PAIR, TARGET, DRAFT = "chatty-pair", "tiny/Chatty-GGUF", "tiny/Draft-GGUF"
FILES = ("chatty-F16.gguf", "draft-F16.gguf")
SIZES = often({"80x24": (80, 24), "120x40": (120, 40)}, ("80x24",))


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with the tiny chat model; ours is far the best of the catalogue, as it says
    itself.
    """
    layers = "embd: 1024, ff: 4096, heads: 16, kv_heads: 4, vocab: 300, source: a test"
    models = "".join(
        f"  - {{id: {name}, title: Tiny, repo: {repo}, file: {file}, bytes: {10**8 * n},"
        " family: tiny, architecture: llama, parameters: 900B, tier: current, use: [chat],"
        f" shape: {{layers: {n}, {layers}}}}}\n"
        for name, repo, file, n in (
            ("chatty", TARGET, FILES[0], 30),  # so that a draft is expected to gain
            ("chatty-draft", DRAFT, FILES[1], 1),
        )
    )
    pair = f"pairs:\n  - {{id: {PAIR}, target: chatty, draft: chatty-draft}}\n"
    own = tmp_path / "config" / "models.yaml"
    own.parent.mkdir()
    own.write_text(f"schema: 1\nmodels:\n{models}{pair}")
    with FakeHub() as hub:
        for repo, file in ((TARGET, FILES[0]), (DRAFT, FILES[1])):
            hub.add(repo, file, zoo["chatty"].read_bytes())
        monkeypatch.setenv("LOCALSPEC_CONFIG", str(own.with_name("config.toml")))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        yield hub


def ask(tmux: Tmux, text: str) -> str:
    before = context(tmux.screen)
    tmux.type(text)
    tmux.press(ENTER)
    return tmux.wait_for(lambda seen: context(seen) > before and "first token" in seen)


def another(tmux: Tmux, *keys: str) -> None:
    before = tmux.coloured
    tmux.press(*keys)
    tmux.wait_for(lambda _: tmux.coloured != before)


def round_number(screen: str) -> int:
    """The round of the selected token; 0 without one."""
    found = re.search(r"round (\d+) ·", screen)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("hub")
def test_tour(tmp_path: Path, size: tuple[int, int]) -> None:
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
        wait_for(lambda: len(running(tmux)) == 1)  # at Home nothing runs but the app
        (app,) = running(tmux)
        quit_app(tmux)
        assert gone([app]) and not running(tmux)


def running(tmux: Tmux) -> list[psutil.Process]:
    return psutil.Process(int(tmux.asks("#{pane_pid}"))).children(recursive=True)


def back_home(tmux: Tmux, *seen: str | Callable[[str], object]) -> None:
    """And the list has the keyboard."""
    tmux.leave_chat(HOME)
    tmux.wait_for(HOME, "▸ demo", *seen)


def first_screen(tmux: Tmux) -> None:
    words = ("Chat with models", "enter", "find a model", "skip")
    tmux.wait_for(lambda now: "billion" in now or "Little memory" in now, *words)
    back_home(
        tmux, lambda seen: PAIR in seen.partition("not downloaded")[2], "w wizard"
    )


def choose_pair(tmux: Tmux) -> None:
    """What for, which one, and what it would be like."""
    tmux.press("w")
    tmux.wait_for("1 of 3", "chat", "code", "writing", "documents")
    tmux.press("1")
    tmux.wait_for(f"▸ {PAIR}", "2 of 3")
    tmux.press(ENTER)
    tmux.wait_for(
        "✓ vocabularies match", "3 of 3", "Memory", "Speed", "3.1 GB to download"
    )


def download(tmux: Tmux, cache: Path) -> None:
    tmux.press(ENTER)
    tmux.wait_for("too large to gain much")  # what was not known before is asked about
    tmux.press(ENTER)
    name = FILES[0].removesuffix(".gguf")
    tmux.wait_for(GREETING, lambda seen: name in seen.splitlines()[0])
    here = [path.name for path in cache.glob("models--*/snapshots/*/*.gguf")]
    assert sorted(here) == sorted(FILES)


def chat_once(tmux: Tmux) -> None:
    # by itself it would not draft: a draft as large as its target
    tmux.type("/spec model")
    tmux.press(ENTER)
    ask(tmux, "Hello")
    seen = tmux.wait_for(
        *("Anything else?", "You", "return 2 * x"),
        # the panel, where there is room
        lambda seen: ("acceptance rate" in seen) == ("f3 panel" in seen),
    )
    assert "```" not in seen


def look_back(tmux: Tmux) -> None:
    """The cursor goes back from the last token to guesses that were kept, and on by a
    round.
    """
    tmux.press("F2")
    tmux.wait_for(*(look.label for look in TOKEN_CLASSES.values()))
    while "accepted draft token" not in tmux.screen:
        another(tmux, "Left")
    number = round_number(tmux.wait_for("accepted draft token", round_number))
    tmux.press("Up", "Up")
    tmux.wait_for(lambda seen: 0 < round_number(seen) < number)
    tmux.press(ESCAPE)
    tmux.wait_for("enter send")
    back_home(
        tmux,
        *("1 turn", lambda seen: PAIR in seen.partition("not downloaded")[0]),
        # where there is room for them
        lambda seen: "✓ verified" in seen or "Downloads" not in seen,
    )


def bench(tmux: Tmux) -> list[psutil.Process]:
    """Of the demo, until the first answer is there; what ran for it."""
    tmux.press("b")
    tmux.wait_for("answers of 64 tokens")
    tmux.press(ENTER)
    tmux.wait_for(
        lambda now: re.search(r"\d+ of \d+ answers, about", now) and "tok/pass" in now
    )
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
    assert tomllib.loads(paths.config_file().read_text()) == {
        "screen": {"theme": "localspec-light"}
    }
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


def test_copied_in_tmux(tmp_path: Path) -> None:
    """tmux has the text, and says so; it passes it to the terminal itself."""
    with Tmux((80, 24), tmp_path) as tmux:
        tmux.run()
        tmux.wait_for(HOME)
        tmux.press(ENTER)
        tmux.wait_for(GREETING)
        ask(tmux, "def f(a):")
        tmux.press("C-o")
        tmux.wait_for("Copied")
        lines = [line.strip() for line in tmux.buffer.splitlines() if line.strip()]
        # a long answer is not all in sight
        assert any(line in tmux.screen for line in lines)
