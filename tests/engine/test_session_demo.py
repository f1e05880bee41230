"""The demo target with a draft of each kind: on code it never saw, its text is plain decoding's."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from localspec import launch
from localspec.engine.session import Session
from localspec.paths import package_data_dir
from localspec.protocol.events import Round
from localspec.protocol.wire import (
    GenerateCommand,
    KvType,
    SamplingParams,
)
from tests.support import demo_heads
from tests.support.sessions import SETTINGS, loaded, require_same_logits_at_every_width, say

TEXT = Path(__file__).resolve().parents[2] / "scripts/train/demo_text.py"
DEMO = package_data_dir() / "demo"
TARGET, DRAFT = DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf"
AS_RUN = replace(SETTINGS, n_ctx=None, n_ubatch=512, n_threads=1)
"""What `localspec run demo --flash-attn on --threads 1` asks for; for more threads see below."""
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.8, seed=7),
}
FLOORS: dict[str, tuple[float, float]] = {"eagle3": (0.62, 0.42), "dspark": (0.66, 0.38)}
"""Acceptance rates of trained heads with drafts of one token and of three, a little under what was
measured: a wrong row, state or position costs no token, only this."""


def held_out() -> list[str]:
    """Names of the modules that the pair was not trained on; the trainer needs torch to import."""
    for node in ast.parse(TEXT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELD_OUT":
            names: tuple[str, ...] = ast.literal_eval(node.value)
            return list(names)
    raise AssertionError(f"{TEXT.name} has no HELD_OUT")


def functions(name: str) -> list[str]:
    """The beginnings of a module's functions, as far as a third of their lines."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # this Python has it no more
        return []
    if spec is None or spec.origin is None or Path(spec.origin).suffix != ".py":
        return []
    source = Path(spec.origin).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    starts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            end = node.lineno + max(1, (node.end_lineno - node.lineno) // 3)
            starts.append("".join(lines[node.lineno - 1 : end])[:1200])
    return starts


def prompts(wanted: int) -> list[str]:
    """As many as wanted, evenly from all that this interpreter's held-out modules offer."""
    found = [text for name in held_out() for text in functions(name)]
    assert len(found) >= wanted
    return found[:: len(found) // wanted][:wanted]


@dataclass
class DemoPair:
    kind: str
    session: Session


@pytest.fixture(scope="module", params=["model", *demo_heads.KINDS])
def demo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DemoPair]:
    """Heads that are not bundled have random weights, which is right for this."""
    target, draft = TARGET, DRAFT
    if request.param != "model":
        pair = demo_heads.pair(request.param, tmp_path_factory.mktemp("heads"))
        target, draft = pair.target, pair.head
    require_same_logits_at_every_width(target)
    with loaded(target, draft, AS_RUN) as session:
        yield DemoPair(request.param, session)


def answered(
    session: Session, text: str, spec: str, sampling: SamplingParams, length: int | None, n: int
) -> list[int]:
    """As in a fresh process: another text first, so that nothing of the last answer is reused."""
    say(session, "\x00", spec="off", max_tokens=1)
    return say(session, text, spec=spec, sampling=sampling, draft_length=length, max_tokens=n).ids


def check(demo: DemoPair, texts: list[str], n: int) -> None:
    """Each text is drafted with another length than the last, and by one of the other ways."""
    for (i, text), sampling in product(enumerate(texts), SAMPLINGS.values()):
        length = 3 * i % 8 + 1
        plain = answered(demo.session, text, "off", sampling, None, n)
        said = answered(demo.session, text, demo.kind, sampling, length, n)
        assert said == plain, (text, length)
        spec = ("auto", "lookup")[i % 2]
        assert answered(demo.session, text, spec, sampling, None, n) == plain, (text, spec)


def test_a_few_answers_are_the_same(demo: DemoPair) -> None:
    check(demo, prompts(20)[:4], 24)


@pytest.mark.long
def test_many_answers_are_the_same(demo: DemoPair) -> None:
    check(demo, prompts(30)[::4], 100)


def test_a_trained_head_is_accepted_as_often_as_it_was(demo: DemoPair) -> None:
    """Greedily, over answers on held-out code."""
    if demo_heads.trained(demo.kind) is None or demo.kind not in FLOORS:
        pytest.skip(f"no trained {demo.kind} head is bundled")
    for length, floor in zip((1, 3), FLOORS[demo.kind], strict=True):
        counts = [
            say(demo.session, text, spec="model", draft_length=length, max_tokens=48).speculation
            for text in prompts(20)[:6]
        ]
        drafted, accepted = (sum(each[what] for each in counts) for what in ("drafted", "accepted"))
        assert accepted / drafted > floor


LONG_PROMPT_CHARS = 2600
"""About 700 tokens: from 257 on, this CPU's attention may depend on the width of a pass."""


def long_prompts(wanted: int) -> list[str]:
    """Evenly from the beginnings of functions, one after the other, of each module."""
    texts = ["".join(functions(module)) for module in held_out()]
    found = [
        text[start : start + LONG_PROMPT_CHARS]
        for text in texts
        for start in range(0, len(text) - LONG_PROMPT_CHARS, LONG_PROMPT_CHARS)
    ]
    return found[:: len(found) // wanted][:wanted]


def parted_answers(
    load: launch.LoadOptions,
    wanted: int,
    pair: str = "demo",
    specs: Sequence[str] = ("model", "lookup", "auto"),
) -> list[str]:
    """Which answers to long prompts differ from plain decoding's, with the settings of `load`."""
    engine = launch.start_engine(load.to_request(launch.resolve_pair(pair, "auto")))
    parted = []
    try:
        for n, text in enumerate(long_prompts(wanted)):
            for name, sampling in SAMPLINGS.items():
                ids = {}
                for spec in ("off", *specs):
                    request = GenerateCommand(text, sampling, 60, spec=spec)
                    rounds = [e for e in engine.generate(request) if isinstance(e, Round)]
                    ids[spec] = [token.id for event in rounds for token in event.tokens]
                parted += [f"{n} {name} {spec}" for spec in ids if ids[spec] != ids["off"]]
    finally:
        engine.close()
    return parted


TWO_THREADS = launch.LoadOptions(ctx=1024, threads=2, gpu_layers=0)


def test_long_answers_part_without_exact_mode_and_never_with_it() -> None:
    if not parted_answers(TWO_THREADS, 2, specs=("model",)):
        pytest.skip("this CPU's attention computes every width alike")
    assert parted_answers(replace(TWO_THREADS, exact=True), 2, specs=("model", "lookup")) == []


@pytest.mark.long
@pytest.mark.parametrize(("kv", "n_prompts"), [(None, 8), ("q8_0", 3)])
def test_many_long_answers_never_part_in_exact_mode(kv: KvType | None, n_prompts: int) -> None:
    assert parted_answers(replace(TWO_THREADS, kv=kv, exact=True), n_prompts) == []
