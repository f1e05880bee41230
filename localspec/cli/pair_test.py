"""`localspec pair test`: judges drafts by answers of their target."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, TextIO

from msgspec.structs import replace

from localspec import launch
from localspec.bench import draft_test, workloads
from localspec.bench.draft_test import DraftJudgement
from localspec.bench.measurement import MeasurementProgress
from localspec.chat import settings
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.settings import LoadedModel
from localspec.cli import options
from localspec.cli.history import open_history
from localspec.cli.options import CommandArguments
from localspec.errors import NotFoundError, UsageError
from localspec.launch import Engine
from localspec.machine.cpu_and_ram import OtherCpuLoad
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


class DraftTestArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `pair test`, but TARGET and DRAFTS."""

    workload: tuple[str, ...]
    file: TextIO | None
    chats: bool
    tokens: int
    temperature: float
    quiet: bool
    anyway: bool
    as_json: bool


class DraftTest:
    """The measurement of `pair test`.

    The target answers once. Then each draft reads these answers: the engine loads the
    target once for each draft model, and prompt lookup is judged beside the first.
    """

    def __init__(
        self, target: str, drafts: Sequence[str], arguments: DraftTestArguments
    ) -> None:
        self._target = target
        self._drafts = drafts
        self._arguments = arguments
        self._judgements: list[DraftJudgement] = []
        self.other_load: float | None = None
        """What other programs used of the CPUs meanwhile, 0 to 1; None if unknown."""

    def run(self) -> Generator[MeasurementProgress, None, None]:
        """Raises UsageError, or the launcher's errors."""
        cpu_load = OtherCpuLoad()
        cpu_load.start()
        try:
            yield from self._judge_drafts()
        finally:
            self.other_load = cpu_load.read()

    def _judge_drafts(self) -> Generator[MeasurementProgress, None, None]:
        arguments = self._arguments
        answers: list[ScoreDraftCommand] = []
        draft_models = [draft for draft in self._drafts if draft != _LOOKUP]
        for draft in draft_models or [_NO_DRAFT]:
            pair = launch.resolve_pair(self._target, draft)
            request = options.build_load_request(
                pair,
                {**arguments.options, "image_model": launch.NO_PROJECTOR},
                spec="auto",
                anyway=arguments.anyway,
            )
            engine = launch.start_engine(request)
            try:
                if not answers:
                    yield MeasurementProgress("the target answers …", is_step=True)
                    answers = _find_answers(engine, arguments)
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
            "temperature": self._arguments.temperature,
            "other_load": self.other_load,
            "drafts": [judgement.to_json() for judgement in self.judgements],
        }


def _find_answers(
    engine: Engine, arguments: DraftTestArguments
) -> list[ScoreDraftCommand]:
    """Kept answers with --chats, else new ones."""
    loaded = LoadedModel.from_ready(engine.ready)
    if arguments.chats:
        model = engine.ready.model.removesuffix(".gguf")
        found = list(_find_kept_answers(loaded, model, arguments.tokens))
        if not found:
            message = "None of your kept chats was answered by this model."
            raise UsageError(message, "Leave out --chats, or give prompts: --file FILE")
        return found
    prompts = list(_find_prompts(arguments))
    if not prompts:
        raise UsageError("There is nothing to answer.", "Give prompts: --file FILE")
    requests: list[GenerateCommand] = []
    for number, prompt in enumerate(prompts):
        request = GenerateCommand(
            sampling=SamplingParams(temperature=arguments.temperature, seed=number),
            max_tokens=_ANSWER_TOKENS,
            spec="off",
        )
        if loaded.has_chat_template:
            request = replace(request, messages=(ChatMessage("user", prompt),))
        else:
            request = replace(request, text=prompt)
        requests.append(request)
    return list(draft_test.record_answers(engine, requests, arguments.tokens))


def _find_kept_answers(
    loaded: LoadedModel, model: str, n_tokens: int
) -> Iterator[ScoreDraftCommand]:
    """First answers of the newest chats, until they have `n_tokens` together."""
    with open_history() as history:
        for entry in history.list_chats():
            saved = history.load_chat(entry.id)
            if not saved.conversation.turns:
                continue
            turn = saved.conversation.turns[0]
            if turn.model != model or not turn.tokens:
                continue
            if _count_tokens(turn) > loaded.n_ctx:
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


def _count_tokens(turn: Turn) -> int:
    """The tokens of the prompt and of the answer."""
    prompts = [event.total for event in turn.events if isinstance(event, Prefill)]
    return max(prompts, default=0) + len(turn.tokens)


def _find_prompts(arguments: DraftTestArguments) -> Iterator[str]:
    """Those of --file; else of the workloads, the first of each before the second."""
    if arguments.file is not None:
        yield from (line.strip() for line in arguments.file if line.strip())
        return
    loaded = workloads.load(arguments.workload)
    n_prompts = max(len(workload.prompts) for workload in loaded)
    for number in range(n_prompts):
        for workload in loaded:
            if number < len(workload.prompts):
                yield workload.prompts[number]


def _judge(
    engine: Engine, draft: str, answers: Sequence[ScoreDraftCommand]
) -> DraftJudgement:
    drafter: Literal["model", "lookup"]
    if draft == _LOOKUP:
        drafter = "lookup"
        kind = _LOOKUP
    else:
        drafter = "model"
        kind = str(engine.ready.settings["draft_kind"])
    commands = [replace(answer, drafter=drafter) for answer in answers]
    scored = [(command, engine.score_draft(command)) for command in commands]
    if not _has_costs(engine, drafter):
        for _ in engine.probe(ProbeCommand(_PROBE_SECONDS)):
            pass
    costs = engine.measured
    if costs is None:
        raise NotFoundError("The passes could not be measured.", "Try again.")
    return draft_test.judge(draft, kind, scored, costs)


def _has_costs(engine: Engine, drafter: Literal["model", "lookup"]) -> bool:
    """Whether the costs of the passes are known that the drafter needs."""
    costs = engine.measured
    if costs is None or len(costs.curve) < 2:
        return False
    return costs.c is not None or drafter == "lookup"
