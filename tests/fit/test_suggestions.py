"""Which pairs are suggested, from the shipped catalogue alone: ten expectations, and the rules."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import NotFoundError
from localspec.fit import machine_profile, suggestions
from localspec.fit.advisor import estimate_tokens_per_second
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, DeviceSpeed, from_devices
from localspec.fit.suggestions import PairSuggestion, SuggestionCriteria
from localspec.models import catalog

GIB = 2**30


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


def card(gib: float) -> MachineProfile:
    return machine_profile.with_vram(gib)


def computer(gib: float) -> MachineProfile:
    """Without a GPU."""
    here = machine_profile.with_vram(1)
    cpu = replace(here.cpu, free=int(gib * GIB), total=int(gib * GIB))
    return MachineProfile((), cpu, from_devices((), TYPICAL_CPU_SPEED))


def suggest(
    free: int, use: str | None = None, target: str | None = None, *, gpu: bool = True, **more: Any
) -> tuple[PairSuggestion, ...]:
    place = card(free / GIB) if gpu else computer(free / GIB)
    return suggestions.suggest(place, SuggestionCriteria(use), target, **more)


def ids(gib: float, use: str | None = None, target: str | None = None) -> list[str]:
    return [one.pair.id for one in suggest(int(gib * GIB), use, target)]


def real(suggestions: tuple[PairSuggestion, ...]) -> list[PairSuggestion]:
    return [one for one in suggestions if one.pair.id != "demo"]


def test_8_gib_for_chat() -> None:
    assert "qwen3-8b+qwen3-0.6b" in ids(8, "chat")[:3]


def test_24_gib_for_code() -> None:
    assert "qwen2.5-coder-32b+qwen2.5-coder-0.5b" in ids(24, "code")[:3]


def test_4_gib_is_filled_with_nothing_over_3_6() -> None:
    found = suggest(4 * GIB)
    assert len(real(found)) >= 5
    assert max(one.needed_bytes for one in found) <= 3.6 * GIB, (
        "the rest is the runtime's and others'"
    )
    assert "gemma-3-4b+gemma-3-270m" in ids(4, "chat")[:3]


def test_6_gib_for_writing() -> None:
    found = real(suggest(6 * GIB, "writing"))
    assert all("writing" in one.pair.use for one in found[:3])
    assert all(one.needed_bytes <= 5.5 * GIB for one in found)


def test_8_gib_for_code() -> None:
    assert ids(8, "code")[0] == "qwen2.5-coder-7b+qwen2.5-coder-0.5b"


def test_12_gib_for_chat() -> None:
    found = ids(12, "chat")
    assert "qwen3-14b+qwen3-0.6b" in found[:3]
    assert "gemma-3-12b+gemma-3-270m" in found[:5]


def test_16_gib_for_documents_knows_models_of_long_contexts() -> None:
    found = suggest(16 * GIB, "documents")
    assert all("documents" in one.pair.use for one in found[:3])
    assert "gpt-oss-20b+lookup" in ids(16, "code")[:3]


def test_32_gib_for_chat_is_one_of_the_large() -> None:
    assert "qwen3-32b+qwen3-1.7b" in ids(32, "chat")[:3]
    assert not any(name.startswith("llama-3.3-70b") for name in ids(32))


def test_a_target_that_does_not_fit_is_shown_with_the_reason() -> None:
    found = suggest(8 * GIB, target="qwen3-32b")
    assert {one.verdict for one in found} == {"no"}
    assert "more than 8.00 GiB" in found[0].reasons[0]


def test_hardly_any_memory_leaves_the_demo() -> None:
    assert ids(0.5) == ["demo"]
    assert ids(24)[-1] == "demo", "which is never before a real model"


def test_without_a_gpu_what_reads_less_for_a_token_comes_first() -> None:
    with_gpu = suggest(30 * GIB, "chat")[0].pair.target
    without = suggest(30 * GIB, "chat", gpu=False)
    assert with_gpu.active is None
    assert without[0].pair.target.active is not None
    slow = next(one for one in without if one.pair.target.id == "qwen3-32b")
    assert any("slower than reading speed" in reason for reason in slow.reasons)


@pytest.mark.parametrize("gigabytes_per_second", [30.0, 60.0])
def test_comfortable_comes_before_large_on_a_cpu(gigabytes_per_second: float) -> None:
    """The slow ones follow, the fastest first."""
    here = computer(30)
    cpu = DeviceSpeed(gigabytes_per_second, 1.0, 0.3, "cpu")
    machine = replace(here, hardware=from_devices((), cpu))
    found = real(suggestions.suggest(machine, SuggestionCriteria()))
    speeds = {one.pair.id: estimate_tokens_per_second(one.fit) for one in found if one.fit}
    are_slow = [rate < 10 for rate in speeds.values()]
    assert set(are_slow) == {True, False}
    assert are_slow == sorted(are_slow)
    best_by_target = {one.pair.target.id: one.pair.id for one in reversed(found)}.values()
    slow = [rate for name, rate in speeds.items() if name in best_by_target and rate < 10]
    assert slow == sorted(slow, reverse=True)


@pytest.mark.parametrize("gib", [4, 24])
@pytest.mark.parametrize("use", [None, "chat", "code", "writing", "documents"])
def test_every_suggestion_fits_runs_and_says_why(gib: int, use: str | None) -> None:
    found = suggest(gib * GIB, use)
    assert found
    for one in found:
        assert one.needed_bytes <= gib * GIB
        assert one.verdict in ("fits", "tight")
        assert one.pair.draft_kind in ("model", "lookup")
        assert one.reasons
    assert len({one.pair.id for one in found}) == len(found)


def test_the_catalogue_pairs_no_target_with_a_draft_model_that_the_engine_would_not_use() -> None:
    """As a draft, a model with a recurrent state would decode the text again and again."""
    for pair in catalog.load().pairs.values():
        one = suggestions.assess_pair(pair, card(80), SuggestionCriteria())
        if pair.draft is not None and one is not None and one.fit is not None:
            assert one.fit.memory_estimate.draft is not None, pair.id


def test_what_does_not_fit_has_no_speed() -> None:
    (big, *_) = suggest(8 * GIB, target="qwen3-32b")
    assert big.verdict == "no"
    assert not any("tok/s" in reason for reason in big.reasons)
    verdicts = [one.verdict == "no" for one in suggest(8 * GIB, target="qwen3.5-9b")]
    assert verdicts == sorted(verdicts) and False in verdicts


def test_the_best_draft_of_each_target_comes_before_second_ones() -> None:
    found = real(suggest(24 * GIB))
    firsts = [one.pair.target.id for one in found]
    n = len(set(firsts))
    assert len(set(firsts[:n])) == n


def test_a_rounded_size_is_said_to_be_one() -> None:
    """Where nothing is known but the size."""
    (best, *_) = suggest(24 * GIB, target="lfm2.5-8b-a1b")
    assert best.fit is None
    assert best.reasons[0].startswith("about ")
    assert not suggest(8 * GIB, target="qwen3-8b")[0].reasons[0].startswith("about")


def test_a_part_of_an_id_is_enough_and_an_unknown_one_is_refused() -> None:
    assert ids(8, target="coder-14b") == ["qwen2.5-coder-14b+qwen2.5-coder-0.5b"]
    with pytest.raises(NotFoundError, match="no entry nosuch"):
        suggest(8 * GIB, target="nosuch")
    with pytest.raises(NotFoundError, match="no pair for Qwen3 0"):
        suggest(8 * GIB, target="qwen3-0.6b")


def test_a_pair_of_unknown_size_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  - {id: a, title: A, repo: x/y, file: a.gguf}\npairs:\n  - {target: a}\n"
    )
    assert suggest(8 * GIB, catalogue=catalog.load(path)) == ()
