"""`localspec pair test`: judges drafts by answers of their target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from localspec import launch
from localspec.bench import draft_test, workloads
from localspec.bench.draft_test import DRAFT_LENGTHS, DraftJudgement
from localspec.chat import settings
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.settings import LoadedModel
from localspec.cli import options
from localspec.cli.history import open_history
from localspec.cli.progress_line import ProgressLine
from localspec.cli.table import format_columns
from localspec.errors import NotFoundError, UsageError
from localspec.launch import Engine
from localspec.protocol.events import Prefill
from localspec.protocol.wire import (
    ChatMessage,
    GenerateCommand,
    ProbeCommand,
    SamplingParams,
    ScoreDraftCommand,
)
from localspec.sanitize import sanitize

_LOOKUP = "lookup"
_NO_DRAFT = "none"
_ANSWER_TOKENS = 128
_PROBE_SECONDS = 1.0
_SHOWN_LENGTHS = (1, 3, 5)


def run(target: str, drafts: Sequence[str], given: dict[str, Any]) -> list[DraftJudgement]:
    """The fastest draft first. Raises UsageError, or the launcher's errors."""
    progress = ProgressLine(quiet=given["quiet"], interval=math.inf)
    answers: list[ScoreDraftCommand] = []
    judgements = []
    try:
        for draft in [draft for draft in drafts if draft != _LOOKUP] or [_NO_DRAFT]:
            with _engine(target, draft, given) as engine:
                if not answers:
                    progress.show("the target answers …", is_step=True)
                    answers = _find_answers(engine, given)
                    if _LOOKUP in drafts:
                        judgements.append(_judge(engine, _LOOKUP, answers))
                if draft != _NO_DRAFT:
                    name = sanitize(draft, multiline=False)
                    progress.show(f"reading the answers: {name} …", is_step=True)
                    judgements.append(_judge(engine, draft, answers))
    finally:
        progress.clear()
    return sorted(judgements, key=lambda judgement: -judgement.speedup)


@contextmanager
def _engine(target: str, draft: str, given: dict[str, Any]) -> Iterator[Engine]:
    choice = launch.resolve_pair(target, draft)
    request = options.build_load_request(choice, given | {"spec": "auto"})
    engine = launch.start_engine(request)
    try:
        yield engine
    finally:
        engine.close()


def _find_answers(engine: Engine, given: dict[str, Any]) -> list[ScoreDraftCommand]:
    """Kept answers with --chats, else new ones."""
    loaded = LoadedModel.from_ready(engine.ready)
    if given["chats"]:
        found = list(
            _find_kept_answers(loaded, engine.ready.model.removesuffix(".gguf"), given["tokens"])
        )
        if not found:
            message = "None of your kept chats was answered by this model."
            raise UsageError(message, "Leave out --chats, or give prompts: --file FILE")
        return found
    prompts = list(_find_prompts(given))
    if not prompts:
        raise UsageError("There is nothing to answer.", "Give prompts: --file FILE")
    requests = [
        GenerateCommand(
            text="" if loaded.has_chat_template else prompt,
            messages=(ChatMessage("user", prompt),) if loaded.has_chat_template else (),
            sampling=SamplingParams(temperature=given["temperature"], seed=number),
            max_tokens=_ANSWER_TOKENS,
            spec="off",
        )
        for number, prompt in enumerate(prompts)
    ]
    return list(draft_test.record_answers(engine, requests, given["tokens"]))


def _find_kept_answers(
    loaded: LoadedModel, model: str, n_tokens: int
) -> Iterator[ScoreDraftCommand]:
    """First answers of the newest chats, until they have `n_tokens` together."""
    with open_history() as history:
        for entry in history.list_chats():
            saved = history.load_chat(entry.id)
            for turn in saved.conversation.turns[:1]:
                if turn.model != model or not 0 < _context_tokens(turn) <= loaded.n_ctx:
                    continue
                asked = Conversation(
                    saved.conversation.seed,
                    saved.conversation.system,
                    [replace(turn, events=())],
                    turn.id,
                )
                request = settings.build_request(saved.settings, asked, loaded)
                yield ScoreDraftCommand(request, turn.tokens)
                n_tokens -= len(turn.tokens)
            if n_tokens <= 0:
                return


def _context_tokens(turn: Turn) -> int:
    """Of the question and its answer; 0 if there is none."""
    prompts = [event.total for event in turn.events if isinstance(event, Prefill)]
    return max(prompts, default=0) + len(turn.tokens) if turn.tokens else 0


def _find_prompts(given: dict[str, Any]) -> Iterator[str]:
    if given["file"] is not None:
        yield from (line.strip() for line in given["file"] if line.strip())
        return
    loaded = workloads.load(given["workload"])
    for number in range(max(len(workload.prompts) for workload in loaded)):
        for workload in loaded:  # the first of each, then the second of each
            yield from workload.prompts[number : number + 1]


def _judge(engine: Engine, draft: str, answers: Sequence[ScoreDraftCommand]) -> DraftJudgement:
    is_lookup = draft == _LOOKUP
    kind = _LOOKUP if is_lookup else str(engine.ready.settings["draft_kind"])
    drafter: Literal["model", "lookup"] = "lookup" if is_lookup else "model"
    commands = [replace(answer, drafter=drafter) for answer in answers]
    scored = [(command, engine.score_draft(command)) for command in commands]
    costs = engine.measured
    if costs is None or len(costs.curve) < 2 or (costs.c is None and not is_lookup):
        for _ in engine.probe(ProbeCommand(_PROBE_SECONDS)):
            pass
        costs = engine.measured
    if costs is None:
        raise NotFoundError("The passes could not be measured.", "Try again.")
    return draft_test.judge(draft, kind, scored, costs)


def format_judgements(judgements: Sequence[DraftJudgement]) -> Iterator[str]:
    header = [f"ACCEPTED AT {n}" for n in _SHOWN_LENGTHS]
    rows = [("DRAFT", "KIND", *header, "BEST LENGTH", "TOK/S", "SPEED-UP")]
    for judgement in judgements:
        rates = [judgement.by_length[n].acceptance_rate for n in _SHOWN_LENGTHS]
        best = judgement.by_length[judgement.best_length]
        rows.append(
            (
                sanitize(judgement.name.rpartition("/")[2], multiline=False),
                judgement.kind,
                *("–" if rate is None else f"{100 * rate:.0f} %" for rate in rates),
                str(judgement.best_length),
                f"{best.tokens_per_second:.1f}",
                f"{judgement.speedup:.2f}×",
            )
        )
    yield from format_columns(rows)
    plain = judgements[0].plain_tps
    best_one = judgements[0]
    yield f"Plain decoding: {plain:.1f} tok/s."
    if best_one.speedup <= 1:
        yield "None of them pays on this computer: `auto` would pause it."


def to_json(
    target: str, given: dict[str, Any], judgements: Sequence[DraftJudgement]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "target": target,
        "temperature": given["temperature"],
        "drafts": [
            {
                "draft": judgement.name,
                "kind": judgement.kind,
                "plain_tps": judgement.plain_tps,
                "best_length": judgement.best_length,
                "speedup": judgement.speedup,
                "by_length": {
                    str(n): {
                        "drafted": rates.drafted,
                        "accepted": rates.accepted,
                        "tokens_per_round": rates.tokens_per_round,
                        "tps": rates.tokens_per_second,
                    }
                    for n in DRAFT_LENGTHS
                    for rates in [judgement.by_length[n]]
                },
            }
            for judgement in judgements
        ],
    }
