"""The shortlist: its estimates, and rows that fit their window."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.content import Content

from localspec.fit import pair_shapes, suggestions
from localspec.fit.pair_shapes import PairShapes
from localspec.launch import saved_criteria
from localspec.machine import memory_probe
from localspec.machine.memory_probe import ModelBuffers, PairBuffers
from localspec.models.gguf import reader
from localspec.protocol.wire import LoadCommand
from localspec.tui.wizard import shortlist
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
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


def draw(candidate: Candidate, width: int) -> Content:
    return shortlist.candidate_line(candidate, "chat", is_downloaded=False, width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_their_window(width: int, usual: Candidate, fast: Candidate) -> None:
    assert shortlist.heading_line(width).cell_length <= width
    assert draw(usual, width).cell_length <= width
    assert draw(fast, width).cell_length <= width


def test_wide_numbers_keep_their_columns_apart(fast: Candidate) -> None:
    assert "2.0–2.4× 143–238 tok/s " in draw(fast, 116).plain


def test_settings_are_sought_again_if_the_counted_memory_does_not_fit(
    stock: WizardServices, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp that needs 320 KiB of buffers a token: 2.5 GiB for a context of 8192."""

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
