"""machine/conversion_process.py: times of a damaged file are not used."""

from collections.abc import Callable
from typing import Any

import pytest

from localspec import data_files, paths
from localspec.fit import machine_profile
from localspec.machine import conversion_process
from localspec.machine.device import HOST

TIMES = {"1": 5.0, "2": 6.0, "4": 8.0, "8": 12.0, "256": 90.0}
DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a time of zero": lambda types: types["Q4_0"].update({"1": 0.0}),
    "a time below zero": lambda types: types["Q4_0"].update({"2": -1.0}),
    "a time that is no number": lambda types: types["Q4_0"].update({"1": "x"}),
    "NaN": lambda types: types["Q4_0"].update({"1": float("nan")}),
    "infinity": lambda types: types["Q4_0"].update({"4": float("inf")}),
    "a number that is too large": lambda types: types["Q4_0"].update({"1": 10**400}),
    "a width that is no number": lambda types: types["Q4_0"].update({"q": 1.0}),
    "a pass of no tokens": lambda types: types["Q4_0"].update({"0": 1.0}),
    "no pass of one token": lambda types: types["Q4_0"].pop("1"),
    "no pass of a prompt": lambda types: types["Q4_0"].pop("256"),
    "a list": lambda types: types.update(Q4_0=[1.0]),
    "an unknown type": lambda types: types.update(Q4_X=types.pop("Q4_0")),
}
"""Changes of a file of two types that make one of them useless."""


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_type_with_damaged_times_is_timed_again(
    damage: Callable[[dict[str, Any]], object],
) -> None:
    types = {"Q4_0": dict(TIMES), "Q8_0": dict(TIMES)}
    damage(types)
    body = {"of": conversion_process._environment(), "types": types}
    assert data_files.write_json("cpu-types.json", body)
    assert set(conversion_process.read_types()) == {"Q8_0"}
    assert "Q4_0" in conversion_process.missing_types()
    speeds = machine_profile.detect().hardware.measured_speeds
    assert {name for device, name in speeds if device == HOST} == {"Q8_0"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"of": 1}'])
def test_a_file_of_no_types_is_none(text: str) -> None:
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    (paths.data_dir() / "cpu-types.json").write_text(text)
    assert conversion_process.read_types() == {}


@pytest.mark.parametrize("types", [[], [1], "Q4_0", 3, None])
def test_types_of_another_form_are_none(types: object) -> None:
    body = {"of": conversion_process._environment(), "types": types}
    assert data_files.write_json("cpu-types.json", body)
    assert conversion_process.read_types() == {}
