"""`localspec pair test`: judges drafts by answers of their target."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from localspec import launch
from localspec.bench import draft_test, workloads
from localspec.bench.draft_test import DraftJudgement
from localspec.bench.measurement import MeasurementProgress
from localspec.chat import settings
from localspec.chat.conversation import Conversation
from localspec.chat.settings import LoadedModel
from localspec.cli import options
from localspec.cli.history import open_history
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


class DraftTest:
    """The measurement of `pair test`: the target answers once, and each draft reads
    that.
    """

    def __init__(
        self, target: str, drafts: Sequence[str], given: dict[str, Any]
    ) -> None:
        self._target, self._drafts, self._given = target, drafts, given
        self._judgements: list[DraftJudgement] = []

    def run(self) -> Generator[MeasurementProgress, None, None]:
        """Raises UsageError, or the launcher's errors."""
        answers: list[ScoreDraftCommand] = []
        for draft in [draft for draft in self._drafts if draft != _LOOKUP] or [
            _NO_DRAFT
        ]:
            pair = launch.resolve_pair(self._target, draft)
            request = options.build_load_request(pair, self._given | {"spec": "auto"})
            engine = launch.start_engine(request)
            try:
                if not answers:
                    yield MeasurementProgress("the target answers …", is_step=True)
                    answers = _find_answers(engine, self._given)
                    if _LOOKUP in self._drafts:
                        self._judgements.append(_judge(engine, _LOOKUP, answers))
                if draft != _NO_DRAFT:
                    name = sanitize(draft, multiline=False)
                    yield MeasurementProgress(
                        f"reading the answers: {name} …", is_step=True
                    )
                    self._judgements.append(_judge(engine, draft, answers))
            finally:
                engine.close()

    @property
    def has_results(self) -> bool:
        return bool(self._judgements)

    has_begun = has_results

    @property
    def judgements(self) -> list[DraftJudgement]:
        """The fastest first."""
        return sorted(self._judgements, key=lambda judgement: -judgement.speedup)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "target": self._target,
            "temperature": self._given["temperature"],
            "drafts": [judgement.to_json() for judgement in self.judgements],
        }


def _find_answers(engine: Engine, given: dict[str, Any]) -> list[ScoreDraftCommand]:
    """Kept answers with --chats, else new ones."""
    loaded = LoadedModel.from_ready(engine.ready)
    if given["chats"]:
        found = list(
            _find_kept_answers(
                loaded, engine.ready.model.removesuffix(".gguf"), given["tokens"]
            )
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
                prompts = [
                    event.total for event in turn.events if isinstance(event, Prefill)
                ]
                size = max(prompts, default=0) + len(turn.tokens)
                if turn.model != model or not turn.tokens or size > loaded.n_ctx:
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


def _find_prompts(given: dict[str, Any]) -> Iterator[str]:
    if given["file"] is not None:
        yield from (line.strip() for line in given["file"] if line.strip())
        return
    loaded = workloads.load(given["workload"])
    for number in range(max(len(workload.prompts) for workload in loaded)):
        for workload in loaded:  # the first of each, then the second of each
            yield from workload.prompts[number : number + 1]


def _judge(
    engine: Engine, draft: str, answers: Sequence[ScoreDraftCommand]
) -> DraftJudgement:
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
