"""Of damaged rows of measured.sqlite, what is read can be used, and the rest is dropped."""

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from localspec import paths
from localspec.fit import calibration, machine_profile, speedup_model
from localspec.fit.advisor import SettingsRequest
from localspec.fit.speed import HardwareSpeed
from localspec.launch import start_engine
from localspec.launch.start import _is_complete
from localspec.machine.measurements import (
    MeasurementStore,
    MemoryMeasurement,
    ModelReads,
    PairMeasurement,
    PairReads,
    check_costs,
    is_trusted,
    make_key,
)
from localspec.protocol.events import Round
from localspec.protocol.json_values import from_json
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    SamplingParams,
)
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_beliefs import SIBLING_PRIOR, PairBeliefs
from localspec.spec.control.pass_costs import MAX_WIDTH, PassCosts
from tests.spec.control.worlds import World, steady
from tests.support.flipped_bits import flip_database_bits
from tests.support.long_cases import bulk
from tests.support.zoo import Zoo

ROW = json.loads("""
{"t1_ms": 4.9172, "curve": {"1": 1.0, "2": 1.4392, "4": 1.9882, "9": 3.2849, "17": 5.0642},
"c": 0.2119, "threads": 2, "threads_batch": 2, "survival": {"greedy": {"drafts": [[0.0, 1.0],
[3.2, 9.0], [0.0, 0.0], [7.0, 8.0], [30.1, 33.0]], "confidences": [5.4, 3.0, 3.2, 4.4, 40.0],
"copy_rates": [0.25, 0.6, 0.725, 0.8, 0.9, 0.96],
"error": -1.1713, "error_rounds": 7.31, "judged": 51, "since": 46, "own": 0.93,
"length": 101.5, "answers": 3, "reading": 0.1388}}, "other_load": 0.026,
"pictures": {"projector": "mmproj.gguf, 850000000, CPU", "row_ms": 7.25}}
""")
"""As an answer of the demo pair leaves it."""
READS = PairReads(
    ModelReads(3 << 30, ("CPU",), "Q8_0"), ModelReads(1 << 30, ("CPU",), "Q8_0")
)
MEMORY = MemoryMeasurement({"CPU": 38_130_432}, {"CPU": 36_051_354})
OTHER = replace(READS, target=replace(READS.target, read=9 << 30))

UNUSABLE: dict[str, Callable[[dict[str, Any]], object]] = {
    "curve: Expected `int`, got `str`: 'q'": lambda row: row["curve"].update(q=1.5),
    "curve: Expected `int` >= 1: '-2'": lambda row: row["curve"].update({"-2": 1.5}),
    "curve: Expected `int`, got `str`: '²'": lambda row: row["curve"].update(
        {"²": 1.5}
    ),
    "curve: Expected `int` >= 1: '0'": lambda row: row["curve"].update({"0": 1.5}),
    "curve: Expected `int` <= 1024: '99999'": lambda row: row["curve"].update(
        {"99999": 1.5}
    ),
    "curve.2: Expected `float` >= 1e-05: 0.0": lambda row: row["curve"].update(
        {"2": 0.0}
    ),
    "curve.4: Expected `float` <= 10000.0: inf": lambda row: row["curve"].update(
        {"4": float("inf")}
    ),
    "curve.9: Expected `int | float`, got `str`: 'x'": lambda row: row["curve"].update(
        {"9": "x"}
    ),
    "curve: Expected `object`, got `array`": lambda row: row.update(curve=[1]),
    "t1_ms: Expected `float` >= 0.01: 0.0": lambda row: row.update(t1_ms=0.0),
    "pictures.row_ms: Expected `float` >= 0.0: -1": lambda row: row["pictures"].update(
        row_ms=-1
    ),
    "t1_ms: Expected `float` >= 0.01: -1": lambda row: row.update(t1_ms=-1),
    "t1_ms: Expected `float` >= 0.01: nan": lambda row: row.update(t1_ms=float("nan")),
    "t1_ms: Expected `float` <= 1000000.0: inf": lambda row: row.update(
        t1_ms=float("inf")
    ),
    "t1_ms: Expected `float` >= 0.01: 1e-320": lambda row: row.update(t1_ms=1e-320),
    "t1_ms: Expected `int` <= 9223372036854775807: 1000": lambda row: row.update(
        t1_ms=10**400
    ),
    "t1_ms: Expected `int | float`, got `str`: 'x'": lambda row: row.update(t1_ms="x"),
    "t1_ms: Expected `int | float`, got `null`": lambda row: row.update(t1_ms=None),
    "t1_ms: Expected `int | float`, got `bool`": lambda row: row.update(t1_ms=True),
    "c: Expected `float` >= 1e-05: 0.0": lambda row: row.update(c=0.0),
    "c: Expected `float` >= 1e-05: nan": lambda row: row.update(c=float("nan")),
    "c: Expected `int | float | null`, got `str`": lambda row: row.update(c="x"),
    "threads: Expected `int | null`, got `str`": lambda row: row.update(threads="2"),
    "threads: Expected `int` >= 1: 0": lambda row: row.update(threads=0),
    "threads: Expected `int` <= 512: 1000000000": lambda row: row.update(threads=10**9),
    "threads_batch: Expected `int | null`, got `float`: 2.5": lambda row: row.update(
        threads_batch=2.5
    ),
    "threads_batch: Expected `int` >= 1: -1": lambda row: row.update(threads_batch=-1),
    "other_load: Expected `int | float | null`, got `str`": lambda row: row.update(
        other_load="x"
    ),
    "other_load: Expected `float` <= 1.0: 2": lambda row: row.update(other_load=2),
    "other_load: Expected `float` >= 0.0: nan": lambda row: row.update(
        other_load=float("nan")
    ),
    "survival: Expected `object`, got `array`": lambda row: row.update(survival=[1]),
    "survival.greedy: Expected `object`, got `array`": lambda row: row[
        "survival"
    ].update(greedy=[1]),
    "survival.greedy.drafts: Expected `array`, got `object`": lambda row: beliefs(
        row
    ).update(drafts={"0": [1, 2]}),
    "survival.greedy.drafts[1]: Expected `array` of length 2, got 1": lambda row: (
        beliefs(row)["drafts"].__setitem__(1, [0.0])
    ),
    "survival.greedy.drafts[3][1]: Expected `float`, got `str`: 'x'": lambda row: (
        beliefs(row)["drafts"].__setitem__(3, [1, "x"])
    ),
    "survival.greedy.drafts[0]: 9.0 tokens are right of 8.0": lambda row: beliefs(row)[
        "drafts"
    ].__setitem__(0, [9.0, 8.0]),
    "survival.greedy.copy_rates[0]: Expected `float` <= 1.0: 1.1": lambda row: beliefs(
        row
    )["copy_rates"].__setitem__(0, 1.1),
    "survival.greedy.copy_rates[5]: Expected `float` >= 0.0: -1.0": lambda row: beliefs(
        row
    )["copy_rates"].__setitem__(5, -1.0),
    "survival.greedy.confidences[0]: Expected `float` <= 1000000.0: 1e+300": lambda row: (
        beliefs(row)["confidences"].__setitem__(0, 1e300)
    ),
    "survival.greedy.confidences[1]: Expected `float` >= 0.0: nan": lambda row: beliefs(
        row
    )["confidences"].__setitem__(1, float("nan")),
    "survival.greedy.error: Expected `float` <= 1000000000000.0: inf": lambda row: (
        beliefs(row).update(error=float("inf"))
    ),
    "survival.greedy.error_rounds: Expected `float` >= 0.0: -1": lambda row: beliefs(
        row
    ).update(error_rounds=-1),
    "survival.greedy.judged: Expected `int` <= 9007199254740992: 1000": lambda row: (
        beliefs(row).update(judged=10**400)
    ),
    "survival.greedy.since: Expected `int` >= 0: -1": lambda row: beliefs(row).update(
        since=-1
    ),
    "survival.greedy.own: Expected `float` <= 1.0: 2": lambda row: beliefs(row).update(
        own=2
    ),
    "survival.greedy.length: Expected `float | null`, got `str`": lambda row: beliefs(
        row
    ).update(length="x"),
    "survival.greedy.reading: Expected `float | null`, got `str`": lambda row: beliefs(
        row
    ).update(reading="x"),
}
"""Changes of a row after which it cannot be used, by the beginning of what is wrong
with it.
"""


def beliefs(row: dict[str, Any]) -> Any:
    return row["survival"]["greedy"]


def damage(problem: str) -> str:
    row = json.loads(json.dumps(ROW))
    UNUSABLE[problem](row)
    return json.dumps(row)


class Rows:
    """A file of measurements of one pair, whose rows the tests change by SQL."""

    def __init__(self, folder: Path) -> None:
        model = folder / "a.gguf"
        model.write_bytes(b"GGUF")
        self.key = make_key(LoadCommand(str(model)))
        self.store = MeasurementStore(folder / "measured.sqlite")
        assert self.store.write_costs(self.key, from_json(MeasuredCosts, ROW), READS)
        assert self.store.write_memory(self.key, MEMORY)
        self._db = sqlite3.connect(folder / "measured.sqlite")

    def write(self, table: str, text: bytes) -> None:
        """Store these bytes as text, which they need not be."""
        with self._db:
            self._db.execute(f"UPDATE {table} SET said = CAST(? AS TEXT)", (text,))

    def read(self) -> PairMeasurement:
        (record,) = self.store.read_all()
        assert record.measured == self.store.read_costs(self.key)
        return record

    def close(self) -> None:
        self._db.close()


@pytest.fixture
def rows(memory_path: Path) -> Iterator[Rows]:
    with closing(Rows(memory_path)) as rows:
        yield rows


def use_costs(costs: MeasuredCosts) -> None:
    """Compute with costs what the engine and this process compute.

    What the engine would save is checked too.
    """
    check_costs(costs)
    for drafts_blocks in (False, True):
        for settling in (0, 2):
            pass_costs = PassCosts(
                costs, drafts_blocks=drafts_blocks, settling=settling
            )
            for width in (1, 2, MAX_WIDTH, 1, 1):
                pass_costs.record_pass(width, 5.0)
            pass_costs.record_draft(2.0, 2)
            in_passes = pass_costs.in_passes()
            assert in_passes.verify[MAX_WIDTH] + in_passes.drafting(16) < float("inf")
            check_costs(MeasuredCosts(pass_costs.plain_ms, pass_costs.verify_curve()))
    for saved in costs.survival.values():
        found = PairBeliefs.from_saved(saved, SIBLING_PRIOR)
        acceptance = found.acceptance()
        for probability in (*acceptance.by_confidence, acceptance.mean):
            assert 0 <= probability <= 1
        for match_length in range(20):
            assert 0 <= found.copy_probability(match_length) <= 1
        world = World(steady(0.6))
        controller = SpeculationController(world, None, PassCosts(costs), found)
        assert 0 < world.run(controller, 12, 16, controller) < float("inf")
        check_costs(replace(costs, survival={"greedy": found.saved()}))
    is_trusted(costs)
    _is_complete(costs, LoadCommand("a.gguf"))
    speedup_model.break_even_rate(costs)


def use_record(record: PairMeasurement, hardware: HardwareSpeed) -> None:
    """Compute what estimates compute with a record and an undamaged one beside it."""
    if record.measured is not None:
        use_costs(record.measured)
    other = PairMeasurement("other", from_json(MeasuredCosts, ROW), OTHER, MEMORY)
    calibrated = calibration.calibrate(hardware, [record, other])
    for speed in calibrated.measured_speeds.values():
        assert speed.bandwidth is not None
        assert 0 < speed.bandwidth < float("inf")


def test_a_whole_row_is_read_as_it_was_written(rows: Rows) -> None:
    record = rows.read()
    assert record.measured is not None
    assert json.loads(json.dumps(to_builtins(record.measured))) == ROW
    assert (record.reads, record.memory) == (READS, MEMORY)
    use_record(record, machine_profile.detect().hardware)


@pytest.mark.parametrize("problem", UNUSABLE)
def test_a_row_that_cannot_be_used_is_dropped(rows: Rows, problem: str) -> None:
    rows.write("measured", damage(problem).encode())
    record = rows.read()
    assert record.measured is None
    assert (record.reads, record.memory) == (READS, MEMORY), "the other rows are whole"


@pytest.mark.parametrize("problem", UNUSABLE)
def test_what_is_wrong_is_named(problem: str) -> None:
    with pytest.raises(ValueError) as error:
        check_costs(from_json(MeasuredCosts, json.loads(damage(problem))))
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(ROW).encode()[:99],
    ],
    ids=lambda text: repr(text[:9]),
)
def test_what_is_no_row_is_dropped(rows: Rows, text: bytes) -> None:
    for table in ("measured", "about", "memory"):
        rows.write(table, text)
    record = rows.read()
    assert (record.measured, record.reads, record.memory) == (None, None, None)


def test_reads_and_memory_that_cannot_be_used_are_dropped(rows: Rows) -> None:
    reads = to_builtins(READS)
    memory = to_builtins(MEMORY)
    for body in (
        reads | {"target": reads["target"] | {"read": "x"}},
        reads | {"target": reads["target"] | {"read": 10**400}},
        reads | {"target": reads["target"] | {"read": -1}},
        reads | {"draft": reads["draft"] | {"read": 1.5}},
        reads | {"target": reads["target"] | {"devices": "CPU"}},
        reads | {"target": reads["target"] | {"family": 3}},
    ):
        rows.write("about", json.dumps(body).encode())
        assert rows.read().reads is None, body
    for body in (
        memory | {"used": []},
        memory | {"used": {"CPU": "x"}},
        memory | {"used": {"CPU": -1}},
        memory | {"predicted": {"CPU": 10**400}},
        memory | {"predicted": {"CPU": float("nan")}},
    ):
        rows.write("memory", json.dumps(body).encode())
        assert rows.read().memory is None, body


def flip_bits(text: bytes, dice: random.Random) -> Iterator[bytes]:
    """The text with single bits flipped, and with random changes."""
    # 3 and 8: each bit of some character
    for bit in range(0, 8 * len(text), bulk(3, 1)):
        yield flip(text, bit)
    for _ in range(bulk(250, 20_000)):
        damaged = text
        for _ in range(dice.randint(2, 4)):
            damaged = flip(damaged, dice.randrange(8 * len(text)))
        yield damaged
    for _ in range(bulk(250, 20_000)):  # a character becomes another of a number
        at = dice.randrange(len(text))
        yield text[:at] + dice.choice(b"0123456789.-e").to_bytes(1) + text[at + 1 :]


def flip(text: bytes, bit: int) -> bytes:
    damaged = bytearray(text)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_whatever_is_read_of_a_damaged_row_can_be_used(rows: Rows) -> None:
    """What comes after the check never meets a value that it cannot compute with."""
    n_used = 0
    n_dropped = 0
    whole = rows.read().measured
    row = json.dumps(ROW, separators=(",", ":")).encode()
    for text in flip_bits(row, random.Random(8)):
        rows.write("measured", text)
        costs = rows.store.read_costs(rows.key)
        if costs is None:
            n_dropped += 1
        elif costs != whole:
            n_used += 1
            use_costs(costs)
    print(f"{n_used} rows used, {n_dropped} dropped")
    assert n_used > 100 and n_dropped > 100


def test_estimates_can_use_whatever_is_read_of_damaged_rows(rows: Rows) -> None:
    whole = {
        "measured": ROW,
        "about": to_builtins(READS),
        "memory": to_builtins(MEMORY),
    }
    encoded = {table: json.dumps(body).encode() for table, body in whole.items()}
    hardware = machine_profile.detect().hardware
    dice = random.Random(9)
    n_whole = 0
    n_damaged = 0
    for _ in range(bulk(200, 10_000)):
        for table, text in encoded.items():
            rows.write(table, flip(text, dice.randrange(8 * len(text))))
        record = rows.read()
        for value in (record.measured, record.reads, record.memory):
            if value is None:
                n_damaged += 1
            else:
                n_whole += 1
        use_record(record, hardware)
    assert n_whole > 20 and n_damaged > 20


def test_a_model_with_a_damaged_row_answers_and_is_measured_again(zoo: Zoo) -> None:
    """The first two once stopped the engine, the others this process."""
    settings = ContextSettings(n_ctx=256, n_threads=1)
    request = SettingsRequest(LoadCommand(str(zoo["target"]), target_settings=settings))
    ask = GenerateCommand("a", SamplingParams(temperature=0.0), 20)
    path = paths.data_dir() / "measured.sqlite"
    store = MeasurementStore(path)

    def answer() -> MeasuredCosts | None:
        """What is stored after an answer."""
        with closing(start_engine(request)) as engine:
            events = list(engine.generate(ask))
        assert any(isinstance(event, Round) for event in events)
        (record,) = store.read_all()
        return record.measured

    assert answer() is not None
    for problem in (
        "curve: Expected `int`, got `str`: 'q'",
        "t1_ms: Expected `float` >= 0.01: 0.0",
        "other_load: Expected `int | float | null`, got `str`",
        "survival: Expected `object`, got `array`",
    ):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE measured SET said = ?", (damage(problem),))
        (record,) = store.read_all()
        assert record.measured is None
        assert answer() is not None


VERSION = range(60, 64)
"""The bytes of the version of the tables. A file of a later version is left alone."""


def check_saving(rows: Rows, place: str) -> None:
    rows.store.read_all()

    assert rows.store.write_costs(rows.key, from_json(MeasuredCosts, ROW), READS), place
    assert rows.store.read_costs(rows.key) == from_json(MeasuredCosts, ROW), place


@pytest.mark.parametrize("stride", [53, pytest.param(1, marks=pytest.mark.long)])
def test_after_a_flipped_bit_anywhere_costs_are_saved_again(
    stride: int, rows: Rows, memory_path: Path
) -> None:
    rows.close()
    path = memory_path / "measured.sqlite"
    body = path.read_bytes()
    for place, harmed in flip_database_bits(body, left_out=VERSION, stride=stride):
        path.write_bytes(harmed)
        check_saving(rows, place)


@pytest.mark.parametrize("name", [b"key TEXT", b"said TEXT", b"at REAL"])
def test_after_a_damaged_name_of_a_column_costs_are_saved_again(
    name: bytes, rows: Rows, memory_path: Path
) -> None:
    """SQLite does not check names."""
    rows.close()
    path = memory_path / "measured.sqlite"
    body = path.read_bytes()
    at = body.index(name) + 1
    path.write_bytes(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])

    check_saving(rows, name.decode())


def test_after_two_tables_begin_on_one_page_costs_are_saved_again(
    rows: Rows, memory_path: Path
) -> None:
    """SQLite does not check that either: the row of one replaces the other's."""
    rows.close()
    path = memory_path / "measured.sqlite"
    body = path.read_bytes()
    at = body.index(b"aboutabout") + len(b"aboutabout")
    assert body[at] == 3
    path.write_bytes(body[:at] + b"\2" + body[at + 1 :])

    check_saving(rows, "the page of `about`")


def test_after_a_write_version_of_a_later_sqlite_costs_are_saved_again(
    rows: Rows, memory_path: Path
) -> None:
    """SQLite opens the file, and writes nothing: as if the file were read-only."""
    rows.close()
    path = memory_path / "measured.sqlite"
    body = path.read_bytes()
    path.write_bytes(body[:18] + b"\6" + body[19:])

    check_saving(rows, "the write version")


def test_a_file_that_may_not_be_written_is_kept(
    rows: Rows, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole; only this process may not write it."""
    rows.close()
    real = sqlite3.connect
    path = memory_path / "measured.sqlite"

    def connect(name: Path, *, timeout: float) -> sqlite3.Connection:
        return real(f"{name.as_uri()}?mode=ro", uri=True, timeout=timeout)

    monkeypatch.setattr(sqlite3, "connect", connect)

    assert not rows.store.write_memory(rows.key, MEMORY)
    assert rows.store.read_costs(rows.key) == from_json(MeasuredCosts, ROW)
    left = {file.name for file in memory_path.iterdir()}
    assert left - {".lock"} == {path.name, "a.gguf"}
