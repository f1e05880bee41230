"""The benchmark pair computes what the demo pair computes."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from localspec.engine.drafters.head_runner import BlockHeadRunner
from tests import beside, demoheads

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
bench: Any = importlib.import_module("make_bench_pair")
bench.THREADS = 1  # threads that wait by spinning cost more than they save on models this small

# Every dimension grows, the query heads of a KV head and the KV heads too.
TINY = bench.Pair(bench.Shape(512, 8, 12, 3, 1152), bench.Shape(256, 5, 6, 2, 512))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    stem = tmp_path_factory.mktemp("bench") / "tiny"
    pair = bench.make_pair(stem, TINY, Kind.F32, bench.DEMO, hopeless=True)
    return dict(zip(("target", "draft", "hopeless"), pair, strict=True))


@pytest.fixture(scope="module", params=["target", "draft"])
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact(role: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trained model's logits with its weights, and so its activations, in F32."""
    source = bench.trained_model(bench.DEMO / f"demo-{role}.gguf")
    path = tmp_path_factory.mktemp("exact") / f"{role}.gguf"
    bench.write(path, bench.Growth(source, source.shape, Kind.F32))
    return bench.logits(path)


def test_enlarging_changes_no_logit(made: dict[str, Any], role: str, exact: Any) -> None:
    # Summing more zeros moves last bits, and so now and then the rounding of a cached F16 key.
    assert bench.distance(made[role].logits, exact) < 1e-4
    assert np.abs(made[role].logits - exact).max() < 5e-3
    assert bench.agreement(made[role].logits, exact) == 1


def test_f32_differs_only_by_the_rounded_activations_of_q8_0(
    made: dict[str, Any], role: str
) -> None:
    assert made[role].distance < bench.TOLERANCE["F16"]


def test_the_hopeless_draft_has_the_same_logits_for_other_tokens(made: dict[str, Any]) -> None:
    draft, hopeless = made["draft"].logits, made["hopeless"].logits
    turned = np.roll(draft, draft.shape[1] // 2, axis=1)
    assert bench.distance(hopeless, turned) < 1e-4


def test_the_hopeless_draft_never_agrees(made: dict[str, Any]) -> None:
    assert bench.agreement(made["hopeless"].logits, made["target"].logits) < 0.1


def test_the_header_is_the_sources_with_the_new_shape(made: dict[str, Any], role: str) -> None:
    grown = bench.Source(made[role].path)
    old = bench.trained_model(bench.DEMO / f"demo-{role}.gguf").reader.fields
    new = grown.reader.fields
    assert list(old) == list(new)
    changed = {key for key in old if old[key].contents() != new[key].contents()}
    assert not any(key.startswith("tokenizer.") for key in changed)
    assert "llama.vocab_size" not in changed
    assert grown.shape == getattr(TINY, role)


@pytest.mark.parametrize("kind", ["eagle3", "dspark", "dflash"])
def test_an_enlarged_head_drafts_the_same(made: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """Both in F32, where only the order of sums differs."""
    head, source = demoheads.pair(kind, tmp_path).head, bench.trained_model(demoheads.TARGET)
    rows = []
    for name, shape in (("small", source.shape), ("large", TINY.target)):
        growth = bench.Growth(source, shape, Kind.F32)
        target, path = tmp_path / f"{name}.gguf", tmp_path / f"{name}-{kind}.gguf"
        if name == "small":
            bench.write(target, growth)
        else:
            target = made["target"].path
        bench.grow_heads.write(path, bench.grow_heads.Head(head, growth))
        rows.append(guesses(target, path))
    small, large = rows
    assert bench.distance(large, small) < 1e-3
    assert bench.agreement(large, small) == 1


def guesses(target: Path, head: Path, places: int = 6, n: int = 4) -> Any:
    """The logits of greedy drafts, at several positions of a text."""
    pair = beside.opened(target, head)
    try:
        companion = pair.followed()
        tokens = pair.target.vocabulary.tokenize("def twice(n):\n    return 2 * n\n\n\ndef three")
        found = []
        for place in range(len(tokens) - places, len(tokens)):
            pair.target.decode(tokens[pair.target.n_past : place], 0)
            if isinstance(companion, BlockHeadRunner):
                found += list(companion.draft_block(tokens[place], n)[0].copy())
                continue
            found.append(companion.first_logits(tokens[place]).copy())
            for _ in range(n - 1):
                found.append(companion.next_logits(int(found[-1].argmax())).copy())
        return np.stack(found)
    finally:
        pair.close()


def test_a_smaller_shape_is_refused() -> None:
    source = bench.trained_model(bench.DEMO / "demo-target.gguf")
    with pytest.raises(ValueError, match="group of"):
        bench.Growth(source, bench.Shape(512, 8, 12, 6, 1152), Kind.F32)


@pytest.mark.parametrize(("tolerance", "status"), [(0.01, 0), (-1.0, 1)])
def test_logits_over_the_tolerance_fail(
    tolerance: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(bench.SIZES, "0.5b", TINY)
    monkeypatch.setitem(bench.TOLERANCE, "Q8_0", tolerance)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--size", "0.5b", "--type", "Q8_0"])
    assert bench.main() == status
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0.5b-Q8_0-draft.gguf",
        "0.5b-Q8_0-target.gguf",
    ]
    assert ("OVER" in capsys.readouterr().out) == bool(status)
