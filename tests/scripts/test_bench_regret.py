"""scripts/bench/regret.py: how rounds are priced apart from the clock, and that it runs."""

import json
from pathlib import Path

import bench
import pytest
import regret

from localspec.paths import package_data_dir
from localspec.protocol.events import Round, RoundTimes, Token

DEMO = package_data_dir() / "demo"


def done(drafted: int, accepted: int, verify: float, draft: float = 0.0) -> Round:
    tokens = (Token(7, "a", "plain"),) * (accepted + 1)
    return Round(0, "model", "", drafted, accepted, tokens, RoundTimes(draft, verify, 0.0))


def test_a_slow_moment_is_no_loss_and_a_failed_draft_is() -> None:
    plain = [done(0, 0, 10.0)] * 97
    slow = [*plain, done(0, 0, 500.0)]
    failed = [*plain, done(2, 0, 20.0, draft=10.0)]
    gained = [*plain, done(2, 2, 600.0, draft=10.0), done(2, 2, 20.0, draft=10.0)]
    never_plain = [done(2, 2, 20.0)] * 3
    found = regret.speedups([slow, failed, gained, never_plain])
    assert found == pytest.approx([1.0, 98 / 100, 103 / 103, 9 / 6])


def test_it_runs_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"merge": "def merge(a, b):", "list": "[1, 2, 3"}))
    pair = ["--target", str(DEMO / "demo-target.gguf"), "--draft", str(DEMO / "demo-draft.gguf")]
    words = [*pair, "--prompts", str(prompts), "--tokens", "16", "--rounds"]
    assert bench.main(["regret", *words, "2"]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == "prompt" and rows[2:] == ["merge", "list", "mean", "worst", "below 0.97"]
    assert bench.main(["regret", "--target", "/no.gguf", *words[2:], "1"]) == 1
    assert "bench.py regret: " in capsys.readouterr().err
