"""Sessions on tiny models: loading them, and collecting their answers."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.session import Session
from localspec.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from localspec.protocol.events import Event, GenerationFinished, Round, SpeculationPlan
from localspec.protocol.wire import (
    ContextSettings,
    CountCommand,
    CountResult,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
    SamplingParams,
)
from tests.support.fake_engine import BareEngine

SETTINGS = ContextSettings(flash_attn="on", n_ctx=512, n_ubatch=32, n_threads=1)
"""From 64 tokens on, flash attention uses tiles, so a wider prefill rounds differently.
"""
GREEDY = SamplingParams(temperature=0)
WIDEST = 17


@dataclass
class Said:
    """One answer, collected from its events."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str = ""
    plan: SpeculationPlan | None = None
    totals: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    @property
    def speculation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.totals["speculation"]
        return found


@contextmanager
def loaded(
    target: Path, draft: Path | None = None, settings: ContextSettings = SETTINGS
) -> Iterator[Session]:
    draft_name = str(draft) if draft else None
    session = Session(LoadCommand(str(target), draft_name, settings, settings))
    try:
        yield session
    finally:
        session.close()


class InProcess(BareEngine):
    """A session with the interface of an engine process; records the requests."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.ready = session.ready
        self.measured: MeasuredCosts | None = None
        self.asked: list[GenerateCommand] = []

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.asked.append(request)
        return self.session.generate(request)

    def count(self, count: CountCommand) -> CountResult:
        return self.session.count(count)

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        for event in self.session.probe(probe):
            if isinstance(event, MeasuredCosts):
                self.measured = event
            else:
                yield event

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        return self.session.replay(replay)


def say(session: Session, text: str, **request: Any) -> Said:
    """Generates a whole answer; greedy unless `sampling` is given."""
    return folded(
        session.generate(GenerateCommand(text, **({"sampling": GREEDY} | request)))
    )


def say_like_plain(
    session: Session,
    spec: str | Sequence[str] = "model",
    text: str = "the one ",
    lengths: Sequence[int | None] = (None,),
    **request: Any,
) -> list[Said]:
    """An answer by each method with drafts of each length.

    All have plain decoding's tokens.
    """
    plain = say(session, text, spec="off", **request)
    answers = list[Said]()
    specs = (spec,) if isinstance(spec, str) else spec
    for each, length in product(specs, lengths):
        said = say(session, text, spec=each, draft_length=length, **request)
        assert said.ids == plain.ids
        assert said.reason == plain.reason, (each, length)
        answers.append(said)
    return answers


def folded(events: Iterable[Event]) -> Said:
    said = Said()
    for event in events:
        if isinstance(event, SpeculationPlan):
            said.plan = event
        elif isinstance(event, Round):
            said.rounds.append(event)
            said.ids += [token.id for token in event.tokens]
            said.text += "".join(token.text for token in event.tokens)
        elif isinstance(event, GenerationFinished):
            said.text += event.tail
            said.reason = event.reason
            said.totals = event.totals
    return said


def require_same_logits_at_every_width(path: Path) -> None:
    """Skips the test if this CPU's kernels round differently by width.

    Then texts may differ.
    """
    if difference := _difference_by_width(path):
        pytest.skip(difference)


@lru_cache
def _difference_by_width(path: Path) -> str:
    tokens = [int(i) for i in np.random.default_rng(0).integers(3, 259, 2 * WIDEST)]
    model = LlamaContext(path, ModelRole(SETTINGS, WIDEST, 0))
    try:
        alone = np.concatenate([model.decode([token], 1).copy() for token in tokens])
        for width in (2, 3, 4, 6, 9, WIDEST):
            model.truncate(0)
            parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
            rows = np.concatenate(
                [model.decode(part, len(part)).copy() for part in parts]
            )
            if not np.array_equal(rows, alone):
                off = np.abs(rows - alone).max()
                return f"here {width} tokens at once move logits by up to {off:.2g}"
    finally:
        model.close()
    return ""
