"""The shortlist: its estimates, and rows that fit their window."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.fit import pair_shapes, suggestions
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.launch import saved_criteria
from localspec.machine import memory_probe
from localspec.machine.memory_probe import ModelBuffers, PairBuffers
from localspec.models import catalog
from localspec.models.gguf import reader
from localspec.protocol.wire import LoadCommand
from localspec.tui.wizard import shortlist, what_if
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    HiddenCandidates,
    WizardServices,
    suggest_candidates,
)
from localspec.tui.wizard.what_if import WhatIf
from tests.support import families, wizards
from tests.support.wizards import CARD, GIB, NO_CARD, PLACE
from tests.support.zoo import Zoo


@pytest.fixture
def stock(tmp_path: Path) -> WizardServices:
    return wizards.stock(tmp_path)


@pytest.fixture
def candidate(stock: WizardServices) -> Candidate:
    return Candidate(stock.catalogue.pairs["qwen3-8b+qwen3-0.6b"], 1)


def estimate(cache: EstimateCache, candidate: Candidate, ctx: int = 2048) -> Candidate:
    return cache.estimate(candidate, PLACE, "chat", WhatIf(ctx=ctx))


def test_an_estimate_is_computed_once(candidate: Candidate) -> None:
    cache = EstimateCache()
    first = estimate(cache, candidate)
    assert first.plan is not None
    assert estimate(cache, candidate).plan is first.plan


def test_an_estimate_is_computed_again_from_headers(
    candidate: Candidate, zoo: Zoo
) -> None:
    cache = EstimateCache()
    first = estimate(cache, candidate)
    assert first.plan is not None
    tiny = pair_shapes.member("chatty", "file", reader.read_model(zoo["chatty"]))
    cache.use_headers(candidate.pair, PairShapes(tiny, tiny))
    second = estimate(cache, candidate)
    assert second.plan is not None
    assert second.plan.total < first.plan.total


def test_a_context_that_cannot_be_has_no_fit_but_a_reason(candidate: Candidate) -> None:
    absurd = estimate(EstimateCache(), candidate, ctx=1 << 40)
    assert absurd.plan is None
    assert absurd.no_fit_reason


def test_what_has_no_shape_is_judged_anew_for_another_card(tmp_path: Path) -> None:
    """Not by the memory of this computer while another card is chosen."""
    found = suggest_candidates(NO_CARD, "chat", WhatIf(), wizards.catalogue(tmp_path))
    (here,) = (one for one in found if one.pair.target.id == "shapeless-12b")
    assert here.size_verdict == "fits"
    small = replace(CARD, total=6 * GIB, free=6 * GIB)
    place = replace(PLACE, devices=(small,))
    there = EstimateCache().estimate(here, place, "chat", WhatIf())
    assert there.size_verdict == "no"
    assert "more than" in there.no_fit_reason


WIDTHS = (56, 76, 108, 116, 150)


@pytest.fixture
def usual(stock: WizardServices) -> Candidate:
    first, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    return first


@pytest.fixture
def fast(usual: Candidate) -> Candidate:
    """Its speeds have many digits."""
    assert usual.plan is not None
    price = replace(wizards.PRICES[usual.pair.id], plain=(143, 238))
    return replace(usual, plan=replace(usual.plan, speed=wizards.speed(price)))


def draw(candidate: Candidate, width: int) -> list[str]:
    line = shortlist.candidate_line(candidate, is_downloaded=False, width=width)
    return line.plain.split("\n")


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_their_window(width: int, usual: Candidate, fast: Candidate) -> None:
    assert shortlist.heading_line(width).cell_length <= width
    for candidate in (usual, fast, replace(fast, is_best=True, group_reason="x" * 200)):
        lines = draw(candidate, width)
        assert max(map(len, lines)) <= width
        assert len(lines) <= 2


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_end_where_their_headings_end(
    width: int, usual: Candidate, fast: Candidate
) -> None:
    heading = shortlist.heading_line(width).plain
    ends = {
        len(heading[: found.end()]) for found in re.finditer(r"\S+(?: \S+)*", heading)
    }
    for candidate in (usual, fast):
        figures = draw(candidate, width)[0][: len(heading)]
        assert {found.end() for found in re.finditer(r"\S(?=  |$)", figures)} >= ends


def test_a_row_has_the_middles_of_its_estimates(usual: Candidate) -> None:
    """76–106 tok/s with the draft, 38–44 without."""
    (line,) = draw(usual, 116)
    assert " 7.0 of 12 GB " in line
    assert " ≈ 91 " in line
    assert " ≈ 41 " in line


def test_a_pair_that_drafts_from_the_text_has_one_speed(stock: WizardServices) -> None:
    _, second, _ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    (line,) = draw(second, 116)
    assert line.count("≈") == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_have_their_reason_in_every_terminal(
    width: int, usual: Candidate
) -> None:
    best = replace(usual, is_best=True, group_reason="answers well")
    assert "answers well" in "".join(draw(best, width))


def test_a_pair_that_is_too_slow_says_what_to_take_and_not_that_it_fits(
    usual: Candidate,
) -> None:
    reason = "too slow from RAM (≈ 2 tok/s): take phi-4 (≈ 31)"
    slow = replace(usual, is_too_slow=True, group_reason=reason)
    (line,) = draw(slow, 116)
    assert line.removeprefix("Qwen3 8B ").strip() == reason


def test_memory_that_programs_hold_is_said_before_the_reason(usual: Candidate) -> None:
    held = replace(usual, bytes_to_free=2 * GIB, group_reason="answers well")
    (line,) = draw(held, 116)
    assert line.endswith("close other programs first")
    (about, _) = shortlist.reason_lines(held, 116, 2)
    assert "they hold 2.0 GB of the memory that it needs" in about.plain


def test_the_reasons_below_the_list_have_as_many_lines_for_each_row(
    usual: Candidate,
) -> None:
    longer = replace(usual, reasons=("word " * 100,))
    for candidate in (usual, longer, replace(usual, reasons=()), None):
        assert len(shortlist.reason_lines(candidate, 76, 2)) == 2


def test_no_candidate_of_any_card_is_marked_untested_or_named_lookup() -> None:
    for place in (PLACE, NO_CARD):
        for candidate in suggest_candidates(place, "chat", WhatIf(), catalog.load()):
            text = "\n".join(draw(candidate, 116))
            assert "untested" not in text
            assert "lookup" not in text


def test_groups_are_sections_in_their_order(usual: Candidate) -> None:
    rows = [replace(usual, group=title) for title in ("Best", "Best", "Older")]
    sections = shortlist.group_candidates(rows)
    titles = [heading.plain for heading, _ in sections if heading is not None]
    assert titles == ["Best", "Older"]
    assert [len(members) for _, members in sections] == [2, 1]


@pytest.mark.parametrize("number", range(1, 31))
def test_of_a_long_group_the_best_are_shown_and_how_many_more(
    usual: Candidate, number: int
) -> None:
    """Opened, it has all of them: none is lost, and none is moved."""
    rows = [
        replace(usual, group="Faster", group_reason=f"reason {n}")
        for n in range(number)
    ]
    rows.append(replace(usual, group="Older"))
    ((_, faster), (_, older)) = shortlist.group_candidates(rows)

    shown = [row for row in faster if isinstance(row, Candidate)]
    hidden = [row for row in faster if isinstance(row, HiddenCandidates)]
    assert shown == rows[: len(shown)]
    assert len(shown) + sum(row.number for row in hidden) == number
    assert len(faster) <= 6
    assert [row.number for row in hidden] != [1]
    assert older == rows[-1:]
    keys = [shortlist.row_key(row) for row in faster]
    assert keys.count(("group", "Faster")) == len(hidden)

    ((_, opened), _) = shortlist.group_candidates(rows, {"Faster"})
    assert opened == rows[:-1]


@pytest.mark.parametrize("use", what_if.USE_CASES)
@pytest.mark.parametrize("place", [PLACE, NO_CARD], ids=["card", "no card"])
def test_no_list_of_the_catalogue_is_longer_than_a_friends(
    place: MachineProfile, use: str
) -> None:
    found = suggest_candidates(place, use, WhatIf(), catalog.load())
    sections = shortlist.group_candidates(found)
    assert sections
    assert all(len(rows) <= 6 for _, rows in sections)


def test_a_row_that_becomes_too_slow_by_a_dial_loses_its_praise(
    stock: WizardServices, usual: Candidate
) -> None:
    praised = replace(usual, is_best=True, group_reason="the best answers that fit")
    slow = replace(usual, is_too_slow=True, group_reason="too slow (≈ 2 tok/s)")
    cache = EstimateCache()
    cache.store("chat", WhatIf(), (slow,))
    estimated = cache.estimate(praised, PLACE, "chat", WhatIf())
    assert estimated.group_reason == "too slow (≈ 2 tok/s)"


def test_settings_are_sought_again_if_the_counted_memory_does_not_fit(
    stock: WizardServices, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp that needs 320 KiB of buffers a token: 2.5 GB for a context of 8192."""

    def count(load: LoadCommand, *_: object, **__: object) -> PairBuffers:
        n_ctx = load.target_settings.n_ctx or 0
        return PairBuffers(ModelBuffers({"CPU": n_ctx * 320 * 1024}, kv=0), None)

    monkeypatch.setattr(memory_probe, "count_buffers", count)
    headers = pair_shapes.from_headers(families.header("qwen3"), None)
    needed = suggestions.assess_pair(
        candidate.pair, NO_CARD, saved_criteria("chat", 8192), shapes=headers
    )
    assert needed is not None
    assert needed.plan is not None
    total = needed.plan.host.total + 6 * GIB  # 4 GiB are the operating system's.
    cpu = replace(NO_CARD.cpu, free=total, total=total)
    machine = replace(NO_CARD, cpu=cpu)

    counted = WizardServices.count_memory(
        stock, candidate, headers, machine, "chat", WhatIf()
    )

    assert counted.plan is not None
    assert counted.plan.memory.method == "exact"
    assert counted.plan.verdict.can_load
