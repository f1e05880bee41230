"""Weight types are timed in a process of their own; damaged times are not used."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import pytest

from localspec import child_process, data_files, paths
from localspec.errors import EngineError
from localspec.fit import machine_profile
from localspec.launch import idle_tasks
from localspec.machine import type_speeds
from localspec.machine.device import HOST
from tests.support.downloads import wait_for

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
    "a pass of two tokens that no computer is so fast at": lambda types: types[
        "Q4_0"
    ].update({"2": 0.1}),
    "a pass of eight tokens that is slower than many of one": lambda types: types[
        "Q4_0"
    ].update({"8": 703.0}),
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
    body = {"of": type_speeds._environment(), "types": types}
    assert data_files.write_json("cpu-types.json", body)
    assert set(type_speeds.read_types()) == {"Q8_0"}
    assert "Q4_0" in type_speeds.missing_types()
    speeds = machine_profile.detect().hardware.measured_speeds
    assert {name for device, name in speeds if device == HOST} == {"Q8_0"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"of": 1}'])
def test_a_file_of_no_types_is_none(text: str) -> None:
    paths.data_dir().mkdir(parents=True, exist_ok=True)
    (paths.data_dir() / "cpu-types.json").write_text(text)
    assert type_speeds.read_types() == {}


@pytest.mark.parametrize("types", [[], [1], "Q4_0", 3, None])
def test_types_of_another_form_are_none(types: object) -> None:
    body = {"of": type_speeds._environment(), "types": types}
    assert data_files.write_json("cpu-types.json", body)
    assert type_speeds.read_types() == {}


def fake_timing(
    patch: pytest.MonkeyPatch,
    n_replies: int,
    other_load: float,
    ms_of_two: float = 1.5,
) -> None:
    """Replace the process that times types, which takes long beside other tests.

    The new one replies so often and then waits for its end. The real replies are in
    tests/engine/test_type_timing_child.py.
    """
    pass_ms = {"1": 1.0, "2": ms_of_two, "256": 100.0}
    reply = {"result": {"pass_ms": pass_ms, "other_load": other_load}}
    child = f"""
import json, sys
for _ in range({n_replies}):
    assert "type_number" in json.loads(sys.stdin.readline())
    print({json.dumps(reply)!r}, flush=True)
sys.stdin.read()
"""
    start = partial(child_process.start, [sys.executable, "-c", child])
    patch.setattr(child_process, "start", lambda _: start())


def test_types_are_timed_while_nothing_else_runs_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_timing(monkeypatch, 1, other_load=0.0)
    tasks = [type_speeds.time_missing_types]
    monkeypatch.setattr(type_speeds, "TIMED_TYPES", ("Q4_0", "Q4_1"))
    with idle_tasks.run_while_idle(tasks, after=0.0):
        (thread,) = [
            each for each in threading.enumerate() if each.name == "idle-tasks"
        ]
        wait_for(lambda: bool(type_speeds.read_types()) or not thread.is_alive())
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive(), "it ends with the block"
    (timed,) = type_speeds.read_types().values()
    assert (timed.name, timed.bits, timed.pass_ms) == (
        "Q4_0",
        4.5,
        {1: 1.0, 2: 1.5, 256: 100.0},
    )
    assert "Q4_0" not in type_speeds.missing_types()
    monkeypatch.setattr(type_speeds, "read_cpu_name", lambda: "another CPU")
    assert type_speeds.read_types() == {}


def test_timing_beside_other_programs_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_timing(monkeypatch, 2, other_load=0.5)
    for is_ended, n_timed in ((True, 0), (False, 2)):
        found = type_speeds.time_types(("Q4_0", "Q4_1"), until_disturbed=is_ended)
        disturbed = [speed.is_disturbed for speed in found]
        assert disturbed == [True] * n_timed and type_speeds.read_types() == {}


def test_times_that_contradict_each_other_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not all load is seen: a container does not count the programs beside it."""
    fake_timing(monkeypatch, 1, other_load=0.0, ms_of_two=0.02)
    (speed,) = type_speeds.time_types(("Q4_0",))
    assert speed.is_disturbed
    assert type_speeds.read_types() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="it has classes of priority")
def test_other_programs_come_first() -> None:
    def wait_and_kill(process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: psutil.Process(process.pid).nice() >= 10)
        process.kill()

    with pytest.raises(EngineError):
        next(type_speeds.time_types(["Q4_0"], wait_and_kill))


@pytest.mark.parametrize(
    ("quantization", "type_"),
    [
        ("UD-Q4_K_XL", "Q4_K"),
        ("Q4_0", "Q4_0"),
        ("MXFP4_MOE", "MXFP4"),
        ("IQ4_XS", ""),
        ("", ""),
    ],
)
def test_the_timed_type_of_a_file(quantization: str, type_: str) -> None:
    assert type_speeds.weight_type(quantization) == type_
