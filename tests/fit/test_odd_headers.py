"""Headers whose numbers do not go together: refused in words, and soon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.errors import LocalspecError
from localspec.fit import places
from localspec.fit.advisor import Advisor, Wish
from localspec.models import blueprint
from localspec.models.header import parse
from localspec.protocol.wire import Load
from tests.families import FAMILIES
from tests.often import often

ODD = (0, 1, 7, 2**31 - 1)


@pytest.mark.parametrize("family", often(list(FAMILIES), list(FAMILIES)[::3]))
def test_every_number_may_be_odd(family: str) -> None:
    about = FAMILIES[family]
    header = blueprint.header(about.small, about.quantisation)
    place = places.with_memory(8)
    for key, value in header.keys.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        for odd in ODD:
            drawn = blueprint.skeleton(replace(header, keys={**header.keys, key: odd}))
            try:
                one = parse(drawn, len(drawn) + blueprint.data_size(header))
                Advisor(one, None, place).advise(Wish(Load("target")))
            except LocalspecError as error:
                assert error.message
