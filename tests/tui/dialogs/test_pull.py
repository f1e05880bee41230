"""Pictures of the sheet before a download: what the hub says of a pair."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import paths
from localspec.models.gguf import reader
from localspec.models.hub.client import HubClient
from localspec.models.local_files import hub_cache
from localspec.tui.dialogs.pull import PullScreen
from localspec.tui.downloads import DownloadManager
from tests.support import ghost_projectors, scenes
from tests.support.app_driver import AppDriver
from tests.support.fake_hub import FakeHub
from tests.support.scenes import settled, surveyed
from tests.support.wizards import PLACE
from tests.support.zoo import Zoo
from tests.tui.screen_states import SHELF


async def looked_at(pilot: Pilot[Any]) -> None:
    await surveyed(pilot)
    await pilot.press("slash", *"qwen3-8b", "tab", "enter")
    shown = AppDriver(pilot)
    await shown.sees("esc back")
    await shown.wait(lambda: "Contacting the hub" not in shown.shown)
    await settled(pilot)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("what", "draft"), [("fits", "cousin"), ("refused", "renamed")]
)
def test_picture(
    snap_compare: Callable[..., bool],
    what: str,
    draft: str,
    zoo: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shelf.yaml").write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: tmp_path / "shelf.yaml")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_cache, "free_bytes", lambda _: 250 * 10**9)
    with FakeHub() as hub:
        hub.add("a/A-GGUF", "A.gguf", zoo["target"].read_bytes())
        hub.add("a/B-GGUF", "B.gguf", zoo[draft].read_bytes())
        hub.cards["a/A-GGUF"] = {"license": "apache-2.0"}
        hub.gated["a/B-GGUF"] = "token"
        app = scenes.home(downloads=DownloadManager(HubClient(hub.url, token="token")))
        assert snap_compare(app, run_before=looked_at)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_dialog_says_what_it_needs_and_how_fast_it_will_be(
    size: tuple[int, int], zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the headers: the catalogue has no shape of this model."""
    (tmp_path / "shelf.yaml").write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: tmp_path / "shelf.yaml")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with FakeHub() as hub:
        hub.add("a/A-GGUF", "A.gguf", zoo["target"].read_bytes())
        hub.add("a/B-GGUF", "B.gguf", zoo["cousin"].read_bytes())
        downloads = DownloadManager(HubClient(hub.url, token=False))
        dialog = PullScreen("qwen3-8b+qwen3-0.6b", downloads, PLACE)
        app = scenes.home(downloads=downloads)
        async with app.run_test(size=size) as pilot:
            await surveyed(pilot)
            app.push_screen(dialog)
            shown = AppDriver(pilot)
            await shown.sees("Download qwen3-8b+qwen3-0.6b", " of 12 GB · ≈ ", " tok/s")
            await shown.press("escape")


async def test_the_dialog_takes_or_leaves_what_a_model_sees_with(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf.yaml").write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: tmp_path / "shelf.yaml")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    width = reader.read(zoo["target"]).n_embd
    tower = ghost_projectors.tiny("idefics3", width)
    projector = tower.write(tmp_path / "mmproj-F16.gguf").read_bytes()
    with FakeHub() as hub:
        hub.add("a/A-GGUF", "A.gguf", zoo["target"].read_bytes())
        hub.add("a/A-GGUF", "mmproj-F16.gguf", projector)
        hub.add("a/B-GGUF", "B.gguf", zoo["cousin"].read_bytes())
        downloads = DownloadManager(HubClient(hub.url, token=False))
        added: list[str] = []
        monkeypatch.setattr(
            downloads, "add", lambda jobs: added.extend(job.file.path for job in jobs)
        )
        for keys, expected in (("i", False), ("ii", True)):
            dialog = PullScreen("qwen3-8b+qwen3-0.6b", downloads, PLACE)
            app = scenes.home(downloads=downloads)
            async with app.run_test(size=(80, 24)) as pilot:
                await surveyed(pilot)
                app.push_screen(dialog)
                shown = AppDriver(pilot)
                await shown.sees("sees images", "mmproj-F16.gguf", "i no images")
                for key in keys:
                    await shown.press(key)
                await shown.sees("i no images" if expected else "i with images")
                await shown.press("enter")
                await shown.wait(lambda: bool(added))
            assert ("mmproj-F16.gguf" in added) == expected
            assert "A.gguf" in added
            added.clear()
