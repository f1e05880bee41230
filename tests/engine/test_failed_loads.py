"""Whatever fails while a pair is loaded, nothing stays loaded."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from localspec import extras
from localspec.engine import drafter_factory, loaded_pair, session
from localspec.engine.session import Session
from localspec.errors import EngineError
from localspec.llama import head_context, model
from localspec.llama.context import OpenContext
from localspec.llama.model import LlamaModel
from localspec.protocol.wire import LoadCommand
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo


class OpenedModels:
    """The models and contexts that were opened in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: list[LlamaModel] = []
        self.contexts: list[OpenContext] = []
        create_model = LlamaModel.__init__
        open_context = OpenContext._open_context

        def create(opened: LlamaModel, *args: Any, **options: Any) -> None:
            self.models.append(opened)
            create_model(opened, *args, **options)

        def open_(opened: OpenContext, params: Any) -> None:
            self.contexts.append(opened)
            open_context(opened, params)

        monkeypatch.setattr(LlamaModel, "__init__", create)
        monkeypatch.setattr(OpenContext, "_open_context", open_)

    @property
    def still_open(self) -> list[LlamaModel | OpenContext]:
        opened: list[LlamaModel | OpenContext] = [*self.models, *self.contexts]
        return [each for each in opened if each.handle is not None]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenedModels:
    return OpenedModels(monkeypatch)


def fail(*_: object, **__: object) -> NoReturn:
    raise EngineError("It broke here.")


STEPS: list[tuple[Any, str]] = [
    (model, "LlamaVocab"),
    (loaded_pair, "PromptBuilder"),
    (loaded_pair, "LoadedDraft"),
    (loaded_pair, "HeadRunner"),
    (loaded_pair.LoadedPair, "_add_warnings"),
    (loaded_pair.LoadedPair, "ready_event"),
    (head_context, "LlamaBatch"),
    (drafter_factory, "LookupDrafter"),
    (drafter_factory, "PassCosts"),
    (session, "AnswerPreparer"),
    (session, "DrafterFactory"),
    (session, "PrefixCache"),
    (session, "ConversationSnapshots"),
    (session, "PairProfiler"),
]


@pytest.mark.parametrize(
    ("owner", "name"), STEPS, ids=[f"{owner.__name__}.{name}" for owner, name in STEPS]
)
def test_a_session_that_fails_at_any_step_leaves_nothing_loaded(
    owner: Any,
    name: str,
    zoo: Zoo,
    opened: OpenedModels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, fail)
    load = LoadCommand(str(zoo["deep"]), str(zoo["eagle3"]), SETTINGS, SETTINGS)

    with pytest.raises(EngineError, match="It broke here"):
        Session(load)

    assert opened.models
    assert opened.still_open == []


def test_an_overlap_that_cannot_be_made_closes_those_before_it(
    zoo: Zoo, opened: OpenedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Overlap:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def close(self) -> None:
            closed.append("first")

    monkeypatch.setattr(extras, "load", lambda _: [Overlap, fail])
    load = LoadCommand(str(zoo["target"]), None, SETTINGS, SETTINGS)

    with pytest.raises(EngineError, match="It broke here"):
        Session(load)

    assert closed == ["first"]
    assert opened.still_open == []


def test_a_draft_that_cannot_be_scored_is_closed_with_its_session(
    zoo: Zoo, opened: OpenedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LoadCommand(str(zoo["target"]), str(zoo["cousin"]), SETTINGS, SETTINGS)
    running = Session(load)
    draft = running._pair.loaded_draft
    assert draft is not None
    monkeypatch.setattr(loaded_pair, "PrefixCache", fail)
    with pytest.raises(EngineError, match="It broke here"):
        draft.load_for_scoring()

    running.close()

    assert len(opened.models) == 3
    assert opened.still_open == []
