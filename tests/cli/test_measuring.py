"""`localspec bench` and `verify`: reports, exit codes, and what Ctrl+C leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import cli, launch
from localspec.cli import options
from localspec.launch import ResolvedPair
from localspec.models import model_lookup
from localspec.protocol.events import EngineExit, EngineReady, Event
from localspec.protocol.wire import GenerateCommand
from tests.bench.fake_engine import Draw, Scripted, honest
from tests.support.run_command import localspec
from tests.support.zoo import Zoo

FEW = ("--workload", "code", "--rounds", "1", "--max-tokens", "12", "--threads", "1")


def test_the_demo_from_end_to_end() -> None:
    document = localspec("bench", "demo", *FEW, "--json").document
    assert document["schema"] == 1
    assert (document["pair"], document["draft"]) == ("demo", "demo-draft.gguf")
    assert (document["spec"], document["interrupted"]) == ("model", False)
    assert document["cost"]["c"] > 0 and document["cost"]["verify_curve"][
        "1"
    ] == pytest.approx(1.0)
    assert document["machine"]["cpu"]
    greedy, sampled = document["workloads"]
    assert [greedy["temperature"], sampled["temperature"]] == [0.0, 0.8]
    for row in (greedy, sampled):
        assert row["plain_tps"] > 0 and row["spec_tps"] > 0
        assert (
            row["speedup"]["min"] <= row["speedup"]["median"] <= row["speedup"]["max"]
        )
        assert 0 < row["acceptance_rate"] <= 1 and row["theory"]["best"] >= 1
        assert len(row["trials"]) == 3


LITTLE = ("--seconds", "0", "--tokens", "8")


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


def test_a_pair_is_not_divergent(zoo: Zoo) -> None:
    pair = (zoo["target"], "--draft", zoo["cousin"])
    done = localspec("verify", *pair, *LITTLE, "--threads", "1", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert (document["schema"], document["verdict"], document["whole"]) == (
        1,
        "lossless",
        True,
    )
    assert document["draft"] == "cousin.gguf" and document["guesses"] > 0
    assert document["greedy"]["prompts"] == document["seeded"]["prompts"] >= 2
    modes = [mode["verify"] for mode in document["sampled"]["modes"]]
    assert modes == ["coupled", "rejection", "block"]
    assert all(mode["tokens"] >= 200 for mode in document["sampled"]["modes"])


def test_a_divergence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Scripted(late))
    assert exit_code("-q") == 1
    out = capsys.readouterr().out
    assert "DIFFERS" in out and "\x1b" not in out and "A bug." in out
    told = [line for line in out.splitlines() if line.startswith("prompt ")]
    assert len(told) == 12, "not all are told"
    assert "prompt 1, token 6 (model, draft length 5): 't" in told[0]
    assert exit_code("--json", "-q") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "divergent"
    first = document["greedy"]["divergences"][0]
    assert (first["position"], first["width"]) == (5, 2)
    # by rounding, which is no failure
    scripted(monkeypatch, Scripted(late, repeats=True))
    assert exit_code() == 0
    out, err = capsys.readouterr()
    assert "12 with another text than plain" in out and "measuring passes" in err


def test_a_pair_that_nobody_named_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, Scripted(honest))
    resolved = ResolvedPair(Path("big.gguf"), None)
    monkeypatch.setattr(options, "resolve_or_pull", lambda *_: resolved)
    for given, is_told in (((), True), (("-q",), False), (("big.gguf",), False)):
        with pytest.raises(SystemExit):
            cli.main(["bench", *FEW, *given])
        told = (
            f"localspec: Measuring {model_lookup.default_pair_id()}, the default pair."
            in capsys.readouterr().err
        )
        assert told is is_told


class Failing(Scripted):
    """Does something at its twelfth answer."""

    def __init__(self, says: Draw, what: Any) -> None:
        super().__init__(says)
        self._what = what
        self._asked = 0

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self._asked += 1
        if self._asked == 12:
            if isinstance(self._what, BaseException):
                raise self._what
            yield self._what
            return
        yield from super().generate(request)


DEAD = EngineExit("signal SIGSEGV", ("boom",), "Try less.")


@pytest.mark.parametrize(("what", "code"), [(KeyboardInterrupt(), 130), (DEAD, 9)])
def test_an_interrupt_keeps_what_was_found_and_a_dead_engine_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: Any,
    code: int,
) -> None:
    scripted(monkeypatch, Failing(late, what))
    assert exit_code("--json", "-q") == code
    document = json.loads(capsys.readouterr().out)
    if what is DEAD:
        assert document["error"]["code"] == "engine"
    else:
        assert (document["verdict"], document["greedy"]["prompts"]) == ("divergent", 1)
