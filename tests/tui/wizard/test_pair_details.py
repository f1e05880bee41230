"""Draft heads on the screens: description, compatibility, automatic detection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.chat.speculation_stats import SpeculationStats
from localspec.fit import pair_shapes
from localspec.fit.pair_shapes import PairShapes
from localspec.launch import recent_pairs
from localspec.models import catalog, draft_heads
from localspec.models.catalog import CatalogPair
from localspec.models.gguf import reader
from localspec.protocol.events import Round, RoundTimes, Token
from localspec.tui import home_rows
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.widgets import speculation_panel
from localspec.tui.wizard.shortlist import WizardServices
from tests.support import head_models, headshapes, wizards
from tests.support.zoo import Zoo
from tests.tui.screens.test_wizard import shown

HEADS = """\
  - {id: qwen3-8b-dspark, title: DSpark head of Qwen3 8B, repo: a/A-GGUF, licence: apache-2.0,
     file: dspark-A-Q8_0.gguf, bytes: 1200000000, family: qwen3, kind: dspark}
pairs:
  - {target: qwen3-8b, draft: qwen3-8b-dspark}
"""
PAIR = "qwen3-8b+qwen3-8b-dspark"


def stock(folder: Path, **more: Any) -> WizardServices:
    """The wizard's services, with a head for the first target."""
    path = folder / "models-with-heads.yaml"
    path.write_text(wizards.MODELS.replace("pairs:\n", HEADS), encoding="utf-8")
    services = wizards.stock(folder, **more)
    services.catalogue = catalog.load(path)
    return services


def of_the_hub(target: str, head: str, zoo: Zoo) -> PairShapes:
    """Headers of target and head with the same vocabulary."""
    words = reader.read(zoo["target"]).tokenizer
    drawn = headshapes.of_target(target), headshapes.header(head)
    parts = [replace(one, tokenizer=words) for one in drawn]
    members = [pair_shapes.member(one.name or "qwen3-8b", "hub", one) for one in parts]
    return pair_shapes.join(*members)


@pytest.mark.asyncio
async def test_the_card_says_what_a_head_is_and_why(tmp_path: Path, zoo: Zoo) -> None:
    def refine(pair: CatalogPair) -> PairShapes | None:
        name = "dspark-qwen3-8b"
        return of_the_hub(name, name, zoo) if pair.id == PAIR else None

    async with shown(stock(tmp_path, read_headers=refine), "1", "enter", "d", "d") as wizard:
        await wizard.sees("with qwen3-8b-dspark Q8_0", "This draft", "DSpark head: trained on")
        await wizard.sees("DSpark head fits its target", "as reported for DSpark heads")
        await wizard.sees("speculative", "tok/s", "from the files' headers")


@pytest.mark.asyncio
async def test_a_head_of_another_model_says_what_differs(tmp_path: Path, zoo: Zoo) -> None:
    def refine(pair: CatalogPair) -> PairShapes | None:
        named = "dspark-qwen3-8b", "eagle3-gpt-oss"
        return of_the_hub(*named, zoo) if pair.id == PAIR else None

    async with shown(stock(tmp_path, read_headers=refine), "1", "enter", "d", "d") as wizard:
        await wizard.sees("✗ DSpark head does not fit: it reads hidden states 2,880")


@pytest.mark.asyncio
async def test_files_of_ones_own_with_a_head(tmp_path: Path) -> None:
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    (tmp_path / "elsewhere").mkdir()
    head = head_models.quantised(head_models.eagle3()).write(tmp_path / "elsewhere" / "head.gguf")
    inside = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    async with shown(stock(tmp_path), "1", "o") as wizard:
        screen = wizard.pilot.app.screen
        assert isinstance(screen, OpenFilesScreen)
        screen.query_one("#target", Input).value = f"'{target}'"
        await wizard.press("enter")
        await wizard.sees("a GGUF model", "with prompt lookup")
        screen.query_one("#draft", Input).value = head.as_uri()
        await wizard.sees("with the EAGLE-3 head")
        assert screen._check_file("draft")
        await wizard.sees("an EAGLE-3 head")
        screen.query_one("#draft", Input).value = ""
        screen.query_one("#target", Input).value = str(inside)
        await wizard.sees("with its own MTP layer")


def test_a_target_opened_alone_takes_its_head_and_says_so(tmp_path: Path) -> None:
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    head = head_models.quantised(head_models.eagle3()).write(tmp_path / "eagle3-deep.gguf")
    choice = launch.with_detected_head(launch.ResolvedPair(target, None))
    assert (choice.draft, choice.detected_head) == (head, "eagle3")
    assert (
        "Drafting with the EAGLE-3 head eagle3-deep.gguf"
        in AppOptions().build_load_request(choice).draft_note
    )
    assert ChatSession(choice).pair_name == "deep + eagle3-deep"
    inside = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    own = launch.with_detected_head(launch.ResolvedPair(inside, None))
    assert ChatSession(own).pair_name == "inside + built-in MTP layer"
    recent_pairs.add_if_path(own)
    itself = launch.ResolvedPair(target, target)
    recent_pairs.add_if_path(itself)
    assert ChatSession(itself).pair_name == "deep + deep", "it has no MTP layer"
    recent = home_rows._recently_opened_rows(home_rows.MachineSurvey())
    drafts = {row.name: row.description for row in recent}
    assert drafts == {"inside": "+ built-in MTP layer", "deep": "+ deep"}
    note = AppOptions().build_load_request(own).draft_note
    assert note == "Drafting with the model's own MTP layer."
    assert home_rows._format_size(own) == home_rows._format_size(replace(own, draft=None)), (
        "one file"
    )
    named = launch.ResolvedPair(target, head)
    assert AppOptions().build_load_request(named).draft_note == ""
    wanted = ChatSessions(AppOptions(spec="eagle3"))
    assert wanted.for_pair(named).settings.spec == "eagle3"
    assert wanted.for_pair(own).settings.spec == "auto", "a preference is for pairs that have it"


def test_home_names_the_head(tmp_path: Path) -> None:
    shelf = stock(tmp_path).catalogue
    nothing = home_rows.HomeSection("Recent chats", ())
    sections = home_rows.build_sections(shelf, home_rows.MachineSurvey(), "dspark", nothing, (), ())
    rows = next(each.rows for each in sections if each.heading == "In the catalogue")
    found = {row.name: row.description for row in rows}
    assert found == {PAIR: "chat, writing · DSpark head · untested"}


def test_every_kind_of_head_is_explained_in_a_sentence() -> None:
    said = {
        kind: draft_heads.HEAD_DESCRIPTIONS[kind] for kind in ("eagle3", "mtp", "dflash", "dspark")
    }
    assert all("draft" in text or "confidence" in text for text in said.values())


def test_the_panel_names_the_draft_sources() -> None:
    figures = SpeculationStats()
    for n, source in enumerate(("eagle3", "mtp+lookup", "dspark")):
        tokens = (Token(5, "a", "accepted"), Token(6, "b", "bonus"))
        figures.add(Round(n, source, "", 1, 1, tokens, RoundTimes(1.0, 1.0, 1.0)))
    drawn = [line.plain for line in speculation_panel._panel_lines(figures, "", 40)]
    assert any(line.startswith("EAGLE-3") for line in drawn)
    assert any(line.startswith("mixed") for line in drawn)
    assert any("1 drafted, DSpark" in line for line in drawn)
