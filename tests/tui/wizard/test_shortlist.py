"""The shortlist: its estimates, and rows that fit their window."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.fit import pair_shapes
from localspec.fit.pair_shapes import PairShapes
from localspec.models.gguf import reader
from localspec.tui.wizard import shortlist
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    WizardServices,
    suggest_candidates,
)
from localspec.tui.wizard.what_if import WhatIf
from tests.support import wizards
from tests.support.wizards import CARD, GIB, NO_CARD, PLACE
from tests.support.zoo import Zoo


@pytest.fixture
def stock(tmp_path: Path) -> WizardServices:
    return wizards.stock(tmp_path)


def test_prices_are_made_once_and_again_when_headers_come(
    stock: WizardServices, zoo: Zoo
) -> None:
    prices, what = EstimateCache(), WhatIf(ctx=2048)
    pair = stock.catalogue.pairs["qwen3-8b+qwen3-0.6b"]
    one = Candidate(pair, 1)
    first = prices.estimate(one, PLACE, "chat", what)
    assert (
        first.fit is not None
        and prices.estimate(one, PLACE, "chat", what).fit is first.fit
    )
    part = pair_shapes.member("chatty", "file", reader.read_model(zoo["chatty"]))
    prices.use_headers(pair, PairShapes(part, part))
    second = prices.estimate(one, PLACE, "chat", what)
    assert second.fit is not None and second.fit.total < first.fit.total
    absurd = prices.estimate(one, PLACE, "chat", WhatIf(ctx=1 << 40))
    assert absurd.fit is None and absurd.no_fit_reason


def test_what_has_no_shape_is_judged_anew_for_another_card(tmp_path: Path) -> None:
    """It was said to fit the memory of this computer while another card was chosen."""
    found = suggest_candidates(NO_CARD, "chat", WhatIf(), wizards.catalogue(tmp_path))
    (here,) = (one for one in found if one.pair.target.id == "shapeless-12b")
    assert here.size_verdict == "fits"
    small = replace(CARD, total=6 * GIB, free=6 * GIB)
    place = replace(PLACE, devices=(small,))
    there = EstimateCache().estimate(here, place, "chat", WhatIf())
    assert there.size_verdict == "no" and "more than" in there.no_fit_reason


def test_lines_fit_their_window_and_keep_their_columns_apart(
    stock: WizardServices,
) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    assert one.fit is not None
    fast = wizards.speed(replace(wizards.PRICES[one.pair.id], plain=(143, 238)))
    for fit in (one.fit, replace(one.fit, speed=fast)):
        for width in (56, 76, 108, 116, 150):
            line = shortlist.candidate_line(
                replace(one, fit=fit),
                "chat",
                is_downloaded=False,
                width=width,
                pointed=True,
            )
            assert line.cell_length <= width
            assert shortlist.heading_line(width).cell_length <= width
            assert (
                width != 116
                or fit is one.fit
                or "2.0–2.4× 143–238 tok/s " in line.plain
            )
