"""The wizard in a real terminal: choose by keys alone, download from a hub, chat; and offline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("there is no tmux", allow_module_level=True)

from tests.often import often
from tests.support.fake_hub import FakeHub
from tests.support.tmux import ENTER, ESCAPE, Tmux, context
from tests.support.zoo import Zoo

TARGET, DRAFT = "tiny/Chatty-GGUF", "tiny/Draft-GGUF"
FILES = ("chatty-Q8_0.gguf", "draft-Q8_0.gguf")
PAIR = "chatty-pair"
GREETING = "f2: token view"
SIZES = pytest.mark.parametrize("size", often({"80x24": (80, 24), "120x40": (120, 40)}, ("80x24",)))


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with the tiny chat model; ours is far the best of the catalogue, as it says itself."""
    size = zoo["chatty"].stat().st_size
    shape = "{layers: 2, embd: 64, ff: 128, heads: 4, kv_heads: 2, vocab: 300, source: a test}"
    models = "".join(
        f"  - {{id: {name}, title: Tiny, repo: {repo}, file: {file}, bytes: {size}, family: tiny,"
        f" architecture: llama, parameters: 900B, tier: current, use: [chat], shape: {shape}}}\n"
        for name, repo, file in (("chatty", TARGET, FILES[0]), ("chatty-draft", DRAFT, FILES[1]))
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


def to_the_list(tmux: Tmux) -> None:
    """From the shell to the second step."""
    tmux.run()
    tmux.wait_for("Ready to run")
    tmux.press("w")
    tmux.wait_for("1 of 3")
    tmux.press("1")
    tmux.wait_for(f"▸ {PAIR}")


@SIZES
def test_choose_download_and_chat(hub: FakeHub, tmp_path: Path, size: tuple[int, int]) -> None:
    with Tmux(size, tmp_path / "data") as tmux:
        to_the_list(tmux)
        tmux.press("Tab", "Right")
        tmux.wait_for("‹ context 2k ›")
        tmux.press(ENTER)
        tmux.wait_for("3 of 3")
        card = tmux.wait_for("✓ vocabularies match")
        assert "from the files' headers" in card and "0.7 MB to download" in card
        tmux.press(ENTER)
        tmux.wait_for("too large to gain much")  # what was not known before is asked about
        tmux.press(ENTER)
        tmux.wait_for(GREETING)  # downloaded and loaded by itself
        tmux.type("Hello")
        tmux.press(ENTER)
        seen = tmux.wait_for(lambda now: context(now) > 0 and "first token" in now)
        assert "/ 2.0k" in seen  # the context that was chosen
        tmux.leave_chat()
        tmux.press("w")
        tmux.wait_for("1 of 3")
        tmux.press("1")
        tmux.wait_for("✓ installed")
        tmux.press("C-q")
    names = sorted(path.name for path in (tmp_path / "hub").glob("models--*/snapshots/*/*.gguf"))
    assert names == sorted(FILES)


@SIZES
def test_offline_everything_but_the_download(
    hub: FakeHub, tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch, zoo: Zoo
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Tmux(size, tmp_path / "data") as tmux:
        to_the_list(tmux)
        tmux.press("g")
        tmux.wait_for("Estimate for another GPU")
        tmux.type("4090")
        tmux.wait_for("RTX 4090, 24 GiB")
        tmux.press(ENTER)
        tmux.wait_for("‹ RTX 4090, 24 GiB ›")
        tmux.wait_for(f"▸ {PAIR}")
        tmux.press(ENTER)
        assert "1008 GB/s" in tmux.wait_for("estimated from the catalogue")
        tmux.press(ENTER)
        tmux.wait_for("esc back")
        tmux.wait_for("Offline mode is on")
        tmux.press(ESCAPE)
        tmux.wait_for(lambda seen: "Offline mode is on" not in seen)
        tmux.press("o")
        tmux.wait_for("Open model files")
        for file in (zoo["chatty"], zoo["chatty"]):
            tmux.type(str(file))
            tmux.press(ENTER)
            tmux.wait_for("a GGUF model")
        tmux.wait_for(GREETING)
        tmux.press("C-q")
    assert not hub.seen
