"""The base of the fake engines."""

from collections.abc import Iterator

from localspec.protocol.events import EngineReady, Event, TokenScore
from localspec.protocol.wire import (
    CountCommand,
    CountResult,
    DraftScore,
    GenerateCommand,
    InspectCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
    ScoreDraftCommand,
    TokenizeCommand,
    TokenizeResult,
)


class BareEngine:
    """An `Engine` that does nothing; a fake overrides what its test needs."""

    ready: EngineReady = EngineReady({}, "model.gguf", None, ("CPU",), {}, {}, 1.0)
    measured: MeasuredCosts | None = None
    alive: bool = True

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        raise AssertionError("nothing is generated")

    def count(self, count: CountCommand) -> CountResult:
        raise AssertionError("nothing is counted")

    def tokenize(self, tokenize: TokenizeCommand) -> TokenizeResult:
        raise AssertionError("nothing is tokenized")

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]:
        raise AssertionError("nothing is inspected")

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        raise AssertionError("nothing is probed")

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        raise AssertionError("nothing is replayed")

    def score_draft(self, command: ScoreDraftCommand) -> DraftScore:
        raise AssertionError("nothing is scored")

    def stop(self) -> None:
        raise AssertionError("nothing is stopped")

    def close(self) -> None:
        pass
