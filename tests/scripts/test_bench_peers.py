"""scripts/bench/peers.py: how turns, ratios and texts are compared, and that all programs run."""

import sys
from collections.abc import Sequence
from pathlib import Path

import bench
import pytest
import turns
from programs import BenchError, Case, Run
from turns import Contestant, Measurement

from localspec.paths import package_data_dir
from tests.llama_cpp_programs import write_programs

DEMO = package_data_dir() / "demo"
CASES = (Case("a", "A"), Case("b", "B"))


class ScriptedProgram:
    """Answers with one speed after the other, and writes its name into the log."""

    def __init__(self, name: str, log: list[str], speeds: Sequence[float]) -> None:
        self.name, self.log, self.speeds = name, log, list(speeds)

    def __call__(self, case: Case) -> Run:
        self.log.append(self.name + case.prompt)
        speed = self.speeds.pop(0)
        return Run(speed, 16, 16 / speed, text="one two")


def measure(turns: int, **speeds: Sequence[float]) -> tuple[Measurement, list[str]]:
    log: list[str] = []
    programs = [Contestant(name, ScriptedProgram(name, log, s)) for name, s in speeds.items()]
    measured = Measurement(programs, CASES, programs[0].name)
    measured.measure(turns)
    return measured, log


def test_a_ratio_is_taken_within_a_turn() -> None:
    """The machine is three times slower in the second turn, for both programs."""
    measured, _ = measure(3, x=[1, 30, 30, 10, 10, 30, 30], y=[1, 60, 15, 20, 5, 60, 60])
    assert measured.ratios("y", 0, lambda run: run.speed) == {"a": 2, "b": 0.5}
    _, first, second = turns.answer_table(measured, 16)
    assert first[2:5] == ["1.000", "1.000", "1.000"]
    assert second[2:5] == ["1.000", "0.500", "1.000"]


def test_a_program_that_fails_is_left_out_and_the_others_go_on() -> None:
    def fail(case: Case) -> Run:
        raise BenchError("no such model")

    measured = Measurement(
        [Contestant("x", fail), Contestant("y", ScriptedProgram("y", [], [1] * 5))], CASES, "x"
    )
    measured.measure(2)
    assert measured.failed == {"x": "no such model"}
    assert [row[1] for row in turns.answer_table(measured, 16)] == ["program", "y"]


@pytest.mark.parametrize(
    ("text", "tokens", "is_same"),
    [
        ("one two three", 16, True),
        ("one two three four\n", 18, True),  # llama-speculative-simple keeps the last draft
        ("one two\ufffd", 16, True),  # cut within a character
        ("one tWo three", 16, False),
        ("one two", 12, False),  # ended earlier
    ],
)
def test_texts_are_the_same_up_to_the_limit(text: str, tokens: int, is_same: bool) -> None:
    plain = Run(1, 16, 1, text="one two three")
    assert turns.is_same_text(Run(1, tokens, 1, text=text), plain, 16) is is_same


@pytest.mark.skipif(sys.platform == "win32", reason="the programs start by their first line")
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (
            ("--gamma", "2", "5", "--temperature", "0"),
            [
                ("llama-server ", "0 of 1"),
                ("llama-server + draft ", " 75% "),
                ("llama-speculative-simple + draft ", " 97.0 "),
                ("llama-speculative-simple + draft, γ 2 ", " 98.0 "),
                ("localspec plain ", "1 of 1"),
                ("localspec auto + draft ", "1 of 1"),
            ],
        ),
        (("--prefill", "24"), [(" 24 ", " 2400 ")]),
    ],
    ids=["answers", "prefill"],
)
def test_all_programs_run_and_have_their_row(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: Sequence[str],
    rows: Sequence[tuple[str, str]],
) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text('{"merge": "def merge(a, b):"}', encoding="utf-8")
    words = ["--target", str(DEMO / "demo-target.gguf"), "--draft", str(DEMO / "demo-draft.gguf")]
    words += ["--llama-cpp", write_programs(tmp_path / "bin", " of another model")]
    words += ["--prompts", str(prompts), "--rounds", "1", "--tokens", "16", *options]
    assert bench.main(["peers", *words]) == 0
    out = capfd.readouterr().out
    for name, cell in rows:
        assert any(f"| {name.lstrip()}" in line and cell in line for line in out.splitlines()), out
