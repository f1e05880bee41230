"""`localspec verify`: what it says, how it exits, and what Ctrl+C leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from localspec import cli, launch
from localspec.protocol.events import EngineExit, EngineReady, Event
from localspec.protocol.wire import GenerateCommand
from tests.bench.pairs import Draw, Scripted, honest
from tests.cli.command import TIMEOUT, command, environment, harmful, localspec
from tests.support.zoo import Zoo

LITTLE = ("--seconds", "0", "--tokens", "8")
DRAWN = ("coupled", "rejection", "block")


def late(request: GenerateCommand, place: int) -> int:
    """Another greedy token at one place, where guessing."""
    wrong = request.spec != "off" and not request.sampling.temperature and place == 5
    return (honest(request, place) + wrong) % 8


def scripted(monkeypatch: pytest.MonkeyPatch, engine: Scripted) -> None:
    """The command gets this engine, whatever it asks for."""
    engine.ready = EngineReady({}, "big.gguf", "small\x1b[2J.gguf", (), {}, {}, 1.0)
    monkeypatch.setattr(launch, "start_engine", lambda *_, **__: engine)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["verify", "demo", *LITTLE, *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


# --- the real command ---------------------------------------------------------------------------


def test_the_demo_is_not_divergent() -> None:
    done = localspec("verify", "demo", *LITTLE, "--threads", "1", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["schema"] == 1
    assert document["verdict"] == "lossless"
    assert document["draft"] == "demo-draft.gguf"
    assert document["whole"] is True
    assert document["guesses"] > 0
    assert document["greedy"]["prompts"] == document["seeded"]["prompts"] == 3
    assert [mode["verify"] for mode in document["sampled"]["modes"]] == list(DRAWN)
    assert all(mode["tokens"] >= 200 for mode in document["sampled"]["modes"])


def test_words_for_a_person(zoo: Zoo) -> None:
    done = localspec("verify", zoo["target"], "--draft", zoo["cousin"], *LITTLE)
    assert done.code == 0
    assert done.text.startswith("target.gguf with cousin.gguf: ")
    verdict, _, rows = done.text.partition("\n\n")
    assert all(len(line) < 80 for line in verdict.splitlines())
    assert rows.startswith("temperature 0 ") and "coupled" in rows
    assert done.err.startswith("localspec: measuring passes")
    assert len(done.err.splitlines()) == 4
    assert not harmful(done.out)


def test_without_a_draft_it_looks_at_copying(zoo: Zoo) -> None:
    done = localspec("verify", zoo["chatter"], *LITTLE, "-q")
    assert (done.code, done.err) == (0, "")
    assert "no draft model" in done.text


def test_a_model_that_cannot_take_back_a_guess(zoo: Zoo) -> None:
    done = localspec("verify", zoo["recurrent"], *LITTLE, "--json", "-q")
    assert done.code == 0
    assert done.document["verdict"] == "lossless"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["nothing"], 3), (["./nothing.gguf"], 3), (["demo", "--tokens", "0"], 2)],
)
def test_wrong_inputs(arguments: list[str], code: int) -> None:
    done = localspec("verify", *arguments, "--json")
    assert done.code == code
    assert done.document["error"]["hint"]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to one process on Windows")
def test_ctrl_c_shows_what_there_is(zoo: Zoo) -> None:
    arguments = command("verify", zoo["target"], "--draft", zoo["cousin"], "--json")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stderr is not None
        while b"same seed" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    document = json.loads(out)
    assert (document["verdict"], document["whole"]) == (None, False)
    assert document["greedy"]["prompts"] > 0
    assert document["sampled"]["modes"] == []


# --- engines that do wrong ----------------------------------------------------------------------


def test_a_divergence_is_explained_and_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Scripted(late))
    assert exit_code("-q") == 1
    out = capsys.readouterr().out
    assert "DIFFERS" in out and "\x1b" not in out
    told = [line for line in out.splitlines() if line.startswith("prompt ")]
    assert len(told) == 12
    assert "prompt 1, token 6 (model, draft length 5): 't" in told[0]
    assert "A bug." in out


def test_another_text_by_rounding_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Scripted(late, repeats=True))
    assert exit_code("-q") == 0
    assert "12 with another text than plain" in capsys.readouterr().out


def test_a_divergence_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Scripted(late))
    assert exit_code("--json", "-q") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "divergent"
    first = document["greedy"]["divergences"][0]
    assert (first["position"], first["width"]) == (5, 2)
    assert set(first) == {
        "prompt", "spec", "draft_length", "position", "width", "speculative", "expected",
    }  # fmt: skip


class Failing(Scripted):
    """Does something at its twelfth answer."""

    def __init__(self, says: Draw, what: Any) -> None:
        super().__init__(says)
        self._what, self._asked = what, 0

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self._asked += 1
        if self._asked == 12:
            if isinstance(self._what, BaseException):
                raise self._what
            yield self._what
            return
        yield from super().generate(request)


@pytest.mark.parametrize(
    ("says", "verdict", "prompts"), [(honest, None, 2), (late, "divergent", 1)]
)
def test_an_interrupt_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    says: Draw,
    verdict: str | None,
    prompts: int,
) -> None:
    scripted(monkeypatch, Failing(says, KeyboardInterrupt()))
    assert exit_code("--json", "-q") == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["greedy"]["prompts"]) == (verdict, prompts)


def test_an_engine_that_dies_is_told_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Failing(honest, EngineExit("signal SIGSEGV", ("boom",), "Try less.")))
    assert exit_code("--json", "-q") == 9
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "engine"


def test_many_divergences_are_not_all_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(request: GenerateCommand, place: int) -> int:
        return (honest(request, place) + (request.spec != "off")) % 8

    scripted(monkeypatch, Scripted(wrong))
    assert exit_code("-q", "--seconds", "5") == 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("prompt ")]
    assert len(told) == 12
