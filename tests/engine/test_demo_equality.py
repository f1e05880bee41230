"""The bundled pair says, speculating, what it says plainly: on code that it was never trained on.

Fifty prompts of 200 tokens with --long; a sample of them without.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import launch
from localspec.engine.session import Session
from localspec.paths import package_data_dir
from localspec.protocol.events import Round
from localspec.protocol.wire import GenerateCommand, KvType, SamplingParams
from tests.sessions import SETTINGS, loaded, require_same_logits_at_every_width, say

TEXT = Path(__file__).resolve().parents[2] / "scripts/train/demo_text.py"
DEMO = package_data_dir() / "demo"
TARGET, DRAFT = DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf"
AS_RUN = replace(SETTINGS, n_ctx=None, n_ubatch=512, n_threads=1)
"""What `localspec run demo --flash-attn on --threads 1` asks for; for more threads see below."""
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.8, seed=7),
}
FEW, MANY = (4, 40), (50, 200)
"""Prompts, and tokens of each."""


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


@pytest.fixture(scope="module")
def demo() -> Iterator[Session]:
    for path in (TARGET, DRAFT):
        require_same_logits_at_every_width(path)
    with loaded(TARGET, DRAFT, AS_RUN) as session:
        yield session


def text_of(
    session: Session, prompt: str, spec: str, sampling: SamplingParams, tokens: int
) -> list[int]:
    """As in a fresh process: another text first, so that nothing of the last answer is reused."""
    say(session, "\x00", spec="off", max_tokens=1)
    said = say(session, prompt, spec=spec, sampling=sampling, max_tokens=tokens)
    assert said.totals["reused_tokens"] == 0
    return said.ids


def check(session: Session, sampling: SamplingParams, size: tuple[int, int]) -> None:
    for prompt in prompts(size[0]):
        plain, *others = (
            text_of(session, prompt, spec, sampling, size[1]) for spec in ("off", "model", "lookup")
        )
        assert others == [plain, plain], prompt


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_few_answers_are_the_same(demo: Session, name: str) -> None:
    check(demo, SAMPLINGS[name], FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_fifty_answers_are_the_same(demo: Session, name: str) -> None:
    check(demo, SAMPLINGS[name], MANY)


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
    if not parted_answers(TWO_THREADS, 3):
        pytest.skip("this CPU's attention computes every width alike")
    assert parted_answers(replace(TWO_THREADS, exact=True), 3) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kv", "n_prompts"), [(None, 20), ("q8_0", 5)])
def test_many_long_answers_never_part_in_exact_mode(kv: KvType | None, n_prompts: int) -> None:
    assert parted_answers(replace(TWO_THREADS, kv=kv, exact=True), n_prompts) == []


def test_there_are_fifty_different_prompts() -> None:
    found = prompts(MANY[0])
    assert len(set(found)) == MANY[0]


def test_the_demo_speculates_with_its_model_for_show() -> None:
    choice = launch.resolve_pair("demo", "auto")
    assert (choice.target, choice.draft) == (TARGET, DRAFT)
