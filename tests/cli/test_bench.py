"""`localspec bench` in a process of its own, on tiny models and the bundled pair."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import command, environment, harmful, localspec
from tests.support.zoo import Zoo

FEW = ("--workload", "code", "--rounds", "1", "--max-tokens", "12", "--threads", "1")

CIRCLE = ("--temperature", "0", "--max-tokens", "40")


def test_the_demo_from_end_to_end() -> None:
    document = localspec("bench", "demo", *FEW, "--json").document
    assert document["schema"] == 1
    assert (document["pair"], document["draft"]) == ("demo", "demo-draft.gguf")
    assert (document["spec"], document["interrupted"]) == ("model", False)
    assert document["cost"]["c"] > 0
    assert document["cost"]["verify_curve"]["1"] == pytest.approx(1.0)
    assert document["machine"]["cpu"]
    greedy, sampled = document["workloads"]
    assert [greedy["temperature"], sampled["temperature"]] == [0.0, 0.8]
    for row in (greedy, sampled):
        assert row["plain_tps"] > 0
        assert row["spec_tps"] > 0
        assert row["speedup"]["min"] <= row["speedup"]["median"] <= row["speedup"]["max"]
        assert 0 < row["acceptance_rate"] <= 1
        assert row["theory"]["best"] >= 1
        assert len(row["trials"]) == 3


def test_a_model_that_guesses_for_itself_in_words(zoo: Zoo) -> None:
    model = zoo["chatter"]
    done = localspec("bench", model, "--draft", model, *FEW, *CIRCLE)
    assert done.code == 0, done.err
    lines = done.text.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith(str(model)))
    (row,) = (line for line in lines if line.startswith("code"))
    assert row.split()[1] == "*", "nine words in a circle are left out"
    said, of = row.split()[-1].split("/")
    assert said == of
    assert "repeats itself (3)" in done.text
    assert "temperature 0.8" not in done.text
    assert not harmful(done.out)


def test_a_card_to_share(zoo: Zoo) -> None:
    done = localspec("bench", zoo["target"], *FEW, "--markdown", "-q")
    assert (done.code, done.err) == (0, "")
    table = [line for line in done.text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert "llama-cpp-python 0.3.36" in done.text
    assert "target.gguf" in done.text


def test_plain_ascii_where_there_is_no_more(zoo: Zoo) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = localspec("bench", zoo["target"], *FEW, "-q", env=ascii_only)
    assert done.code == 0, done.err
    assert done.out.isascii()
    assert "#" in done.text


def test_an_unknown_workload_is_told_the_known_ones() -> None:
    done = localspec("bench", "demo", "--workload", "poems", "--json")
    error = done.document["error"]
    assert (done.code, error["code"]) == (2, "usage")
    assert "poems" in error["message"]
    for name in ("code", "prose", "chat", "long-form", "copy-edit"):
        assert name in error["hint"]


def test_prompts_that_do_not_fit_are_explained(zoo: Zoo) -> None:
    done = localspec("bench", zoo["target"], *FEW, "--ctx", "32")
    assert done.code == 13
    assert "--ctx" in done.err


@pytest.mark.parametrize("json_wanted", [True, False])
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupted_it_shows_what_there_is(zoo: Zoo, tmp_path: Path, json_wanted: bool) -> None:
    asked = ["bench", str(zoo["chatter"]), "--rounds", "900", "--max-tokens", "40"]
    found = _interrupted([*asked, "--json"] if json_wanted else asked, tmp_path)
    assert found.returncode == 130
    if not json_wanted:
        assert b"Interrupted" in found.stdout
        return
    document = json.loads(found.stdout)
    assert document["interrupted"]
    assert document["rounds"] == 900
    assert 0 < document["trials"] < 900


def _interrupted(asked: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Ctrl+C once some answers are counted on the terminal that is its standard error."""
    import pty  # noqa: PLC0415  there is none on Windows

    ours, theirs = pty.openpty()
    out = folder / "out"
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            command(*asked), stdout=stdout, stderr=theirs, env=environment({"TERM": "xterm"})
        )
    os.close(theirs)
    seen = b""
    until = time.monotonic() + 60
    try:
        while b"4 of " not in seen and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        assert b"left" in seen, seen
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return subprocess.CompletedProcess(asked, code, out.read_bytes(), seen)
