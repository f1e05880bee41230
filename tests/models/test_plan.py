"""What a pull would do, and what is refused before it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import AccessError, ChecksumError, OfflineError
from localspec.models import plan, wanted
from localspec.models.catalog import Model
from localspec.models.plan import Planner
from localspec.models.remote import Hub
from localspec.models.wanted import Asked
from tests.fakehub import API, BODY, FakeHub
from tests.zoo import Zoo

REPO = "org/Tiny-GGUF"
FILE = "Tiny-Q8_0.gguf"


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with FakeHub() as hub:
        hub.add(REPO, FILE, zoo["target"].read_bytes())
        hub.add(REPO, "Draft-Q4_K_M.gguf", zoo["cousin"].read_bytes())
        yield hub


def model(**known: object) -> Asked:
    entry = replace(Model("tiny", "Tiny", REPO, FILE), **known)  # type: ignore[arg-type]
    return Asked("tiny", wanted.of(entry))


def test_one_listing_and_one_header_a_model(hub: FakeHub) -> None:
    pair = Asked("p", model().target, wanted.read(f"{REPO}:Q4_K_M").target)
    found = plan.make(Hub(hub.url), [pair, model()])
    assert [item.file for item in found.items] == [FILE, "Draft-Q4_K_M.gguf"]
    assert found.missing == found.size > 0
    (match,) = found.matches
    assert match.verdict.compatible
    assert len([seen for seen in hub.seen if seen.kind == API]) == 1
    assert len([seen for seen in hub.seen if seen.kind == BODY]) == 2


def test_too_little_room_is_said_first(hub: FakeHub) -> None:
    found = plan.make(Hub(hub.url), [model()])
    found.check()
    with pytest.raises(AccessError, match="MB free"):
        replace(found, free=100).check()


def test_another_file_than_the_catalogue_is_sure_of(hub: FakeHub) -> None:
    with pytest.raises(ChecksumError, match="not the file that the catalogue means"):
        plan.make(Hub(hub.url), [model(sha256="0" * 64)])
    (item,) = plan.make(Hub(hub.url), [model(bytes=7)]).items
    assert "replaced since" in item.notes[0]


def test_what_came_already_is_counted(hub: FakeHub, tmp_path: Path) -> None:
    digest = hub.repos[REPO][FILE].sha256
    part = tmp_path / "hub" / "models--org--Tiny-GGUF" / "blobs" / f"{digest}.localspec.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(hub.repos[REPO][FILE].data[:1000])
    found = plan.make(Hub(hub.url), [model()])
    assert found.missing == found.size - 1000


def test_offline_nothing_is_known_of_what_is_not_here(hub: FakeHub) -> None:
    with pytest.raises(OfflineError):
        plan.make(Hub(hub.url, offline=True), [model()])
    assert hub.seen == []


def test_a_file_of_ones_own_asks_nobody(hub: FakeHub, zoo: Zoo) -> None:
    item = Planner(Hub(hub.url)).item(wanted.read(str(zoo["target"])).target)
    assert item.path == zoo["target"] and item.missing == 0 and item.header is not None
    assert hub.seen == []
