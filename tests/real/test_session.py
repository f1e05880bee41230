"""With a draft of each kind the demo's text is that of plain decoding.

The prompts are code on which the demo was not trained.
"""

import calendar
import difflib
import heapq
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.engine.session import Session
from localspec.engine_process.client import EngineProcess
from localspec.paths import package_data_dir
from localspec.protocol.events import Round
from localspec.protocol.wire import GenerateCommand, KvType, SamplingParams
from tests.support.long_cases import LONG
from tests.support.sessions import (
    SETTINGS,
    loaded,
    require_same_logits_at_every_width,
    say,
)

DEMO = package_data_dir() / "demo"
TARGET = DEMO / "demo-target.gguf"
DemoPair = tuple[str, Session]
"""The kind of the draft, and a session."""
AS_RUN = replace(SETTINGS, n_ctx=None, n_ubatch=512, n_threads=1)
"""What `localspec run demo --flash-attn on --threads 1` asks for; for more threads see
below.
"""
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.8, seed=7),
}
FLOORS: dict[str, tuple[float, float]] = {
    "eagle3": (0.71, 0.51),
    "dspark": (0.63, 0.36),
}
"""Acceptance rates of trained heads with drafts of one token and of three, a little
under what was measured: a wrong row, state or position costs no token, only this.
"""


def sources() -> list[str]:
    """The code of modules on which the pair was not trained: HELD_OUT of demo_text.py."""
    return [
        inspect.getsource(module)
        for module in (calendar, difflib, heapq, shlex, textwrap)
    ]


def prompts(wanted: int) -> list[str]:
    """The beginnings of functions, evenly from all."""
    parts: list[str] = []
    for text in sources():
        parts += re.split(r"\n(?= *def )", text)[1:]
    assert len(parts) >= wanted
    chosen = parts[:: len(parts) // wanted][:wanted]
    return [part[: len(part) // 3 + 40] for part in chosen]


@pytest.fixture(scope="module", params=["model", *FLOORS])
def demo(request: pytest.FixtureRequest) -> Iterator[DemoPair]:
    kind = request.param
    draft = "demo-draft.gguf" if kind == "model" else f"demo-{kind}.gguf"
    require_same_logits_at_every_width(TARGET)
    with loaded(TARGET, DEMO / draft, AS_RUN) as session:
        yield kind, session


@pytest.mark.parametrize(
    ("wanted", "chosen", "n"),
    [(20, slice(4), 24), pytest.param(30, slice(0, None, 4), 100, marks=LONG)],
    ids=["few", "many"],
)
def test_answers_are_those_of_plain_decoding(
    demo: DemoPair, wanted: int, chosen: slice, n: int
) -> None:
    """Each text is drafted with another length than the last, and by another method."""
    kind, session = demo

    def answered(text: str, **asked: Any) -> list[int]:
        say(session, "\x00", spec="off", max_tokens=1)  # so that nothing is reused
        return say(session, text, max_tokens=n, **asked).ids

    for (i, text), sampling in product(
        enumerate(prompts(wanted)[chosen]), SAMPLINGS.values()
    ):
        plain = answered(text, spec="off", sampling=sampling)
        other = "auto" if i % 2 == 0 else "lookup"
        for spec, length in ((kind, 3 * i % 8 + 1), (other, None)):
            found = answered(text, spec=spec, sampling=sampling, draft_length=length)
            assert found == plain, (text, spec)


@pytest.mark.parametrize("kind", FLOORS)
def test_a_trained_head_is_accepted_as_often_as_it_was(kind: str) -> None:
    """Greedily, over answers on held-out code."""
    with loaded(TARGET, DEMO / f"demo-{kind}.gguf", AS_RUN) as session:
        for length, floor in zip((1, 3), FLOORS[kind], strict=True):
            asked = {"spec": "model", "draft_length": length, "max_tokens": 48}
            counts = [
                say(session, text, **asked).speculation for text in prompts(20)[:6]
            ]
            drafted, accepted = (
                sum(each[name] for each in counts) for name in ("drafted", "accepted")
            )
            assert accepted / drafted > floor


LONG_PROMPT_CHARS = 2600
"""About 700 tokens: from 257 on, this CPU's attention may depend on the width of a
pass.
"""


def long_prompts(wanted: int) -> list[str]:
    n = LONG_PROMPT_CHARS
    found: list[str] = []
    for text in sources():
        found += (text[at : at + n] for at in range(0, len(text) - n, n))
    return found[:: len(found) // wanted][:wanted]


def parted_answers(
    load: launch.LoadOptions,
    wanted: int,
    specs: Sequence[str] = ("model", "lookup", "auto"),
) -> list[str]:
    """Which answers to long prompts differ from plain decoding's."""
    engine = launch.start_engine(load.to_request(launch.resolve_pair("demo", "auto")))
    parted: list[str] = []
    try:
        for n, text in enumerate(long_prompts(wanted)):
            for name, sampling in SAMPLINGS.items():
                request = GenerateCommand(text, sampling, max_tokens=60)
                plain = generated_ids(engine, replace(request, spec="off"))
                for spec in specs:
                    ids = generated_ids(engine, replace(request, spec=spec))
                    if ids != plain:
                        parted.append(f"{n} {name} {spec}")
    finally:
        engine.close()
    return parted


def generated_ids(engine: EngineProcess, request: GenerateCommand) -> list[int]:
    ids: list[int] = []
    for event in engine.generate(request):
        if isinstance(event, Round):
            ids += [token.id for token in event.tokens]
    return ids


TWO_THREADS = launch.LoadOptions(ctx=1024, threads=2, gpu_layers=0)


def test_long_answers_part_without_exact_mode_and_never_with_it() -> None:
    if not parted_answers(TWO_THREADS, 2, specs=("model",)):
        pytest.skip("this CPU's attention computes every width alike")
    exact = replace(TWO_THREADS, exact=True)

    assert parted_answers(exact, 2, specs=("model", "lookup")) == []


@pytest.mark.long
@pytest.mark.parametrize(("kv", "n_prompts"), [(None, 8), ("q8_0", 3)])
def test_many_long_answers_never_part_in_exact_mode(
    kv: KvType | None, n_prompts: int
) -> None:
    assert parted_answers(replace(TWO_THREADS, kv=kv, exact=True), n_prompts) == []
