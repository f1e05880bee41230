"""fit/shape.py: headers with inconsistent numbers are refused with a message."""

import pytest
from msgspec.structs import replace

from localspec.errors import LocalspecError
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.models.gguf import writer
from localspec.models.gguf.reader import parse
from localspec.protocol.wire import LoadCommand
from tests.support import families
from tests.support.families import FAMILIES
from tests.support.long_cases import often


@pytest.mark.parametrize("family", often(list(FAMILIES), list(FAMILIES)[::3]))
def test_every_number_may_be_odd(family: str) -> None:
    header = families.header(family, small=True)
    machine = machine_profile.with_vram(8)
    for key, value in header.keys.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        for odd in (0, 1, 7, 2**31 - 1):
            data = writer.serialize_header(
                replace(header, keys={**header.keys, key: odd})
            )
            try:
                damaged = parse(data, len(data) + writer.data_size(header))
                SettingsAdvisor(
                    *pair_shapes.from_headers(damaged, None).shapes, machine
                ).advise(SettingsRequest(LoadCommand("target")))
            except LocalspecError as error:
                assert error.message
