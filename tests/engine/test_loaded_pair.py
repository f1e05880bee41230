"""What a loaded pair tells of itself, and which drafts a target refuses."""

import pytest
from msgspec.structs import replace

from localspec.engine import loaded_pair
from localspec.engine.loaded_pair import LoadedPair
from localspec.errors import UsageError
from localspec.llama import context
from localspec.llama.context import LlamaContext
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import DRAFT_MAX, LoadCommand
from tests.support.sessions import SETTINGS, loaded, say
from tests.support.zoo import Zoo

PROMPT = "the one "


def test_ready_says_what_is_really_used(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"]) as session:
        ready: EngineReady = session.ready

    assert ready.model == "target.gguf"
    assert ready.draft == "cousin.gguf"
    assert ready.settings["target"]["n_ctx"] == 512
    assert ready.settings["draft_max"] == DRAFT_MAX
    assert ready.load_ms > 0
    assert ready.devices
    assert ready.notices == ()


def test_a_context_longer_than_the_model_was_trained_with_is_a_warning(
    zoo: Zoo,
) -> None:
    with loaded(zoo["target"], settings=replace(SETTINGS, n_ctx=2048)) as session:
        assert [notice.code for notice in session.ready.notices] == ["beyond-trained"]
        assert session.ready.settings["target"]["n_ctx"] == 2048


@pytest.mark.parametrize("step", ["PromptBuilder", "LoadedDraft"])
def test_a_load_that_fails_after_the_target_closes_it(
    step: str, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = LlamaContext.close

    def record_close(context: LlamaContext) -> None:
        closed.append("target")
        close(context)

    def fail(*_: object, **__: object) -> None:
        raise UsageError("It fails.")

    monkeypatch.setattr(LlamaContext, "close", record_close)
    monkeypatch.setattr(loaded_pair, step, fail)
    load = LoadCommand(
        target=str(zoo["target"]),
        draft=str(zoo["cousin"]),
        target_settings=SETTINGS,
        draft_settings=SETTINGS,
    )

    with pytest.raises(UsageError, match="It fails"):
        LoadedPair(load, interrupted=lambda: False)

    assert closed == ["target"]


@pytest.mark.parametrize(
    ("draft", "level", "words"),
    [
        ("padded", "warning", "larger than its target"),
        ("f32", "info", "the target itself"),
    ],
)
def test_a_draft_as_large_as_its_target_is_told(
    draft: str, level: str, words: str, zoo: Zoo
) -> None:
    with loaded(zoo["f32"], zoo[draft]) as session:
        (notice,) = session.ready.notices
        said = say(session, PROMPT, spec="model")

    assert notice.level == level
    assert notice.code == "large-draft"
    assert words in notice.message
    assert "or none" in notice.hint
    assert said.speculation["drafted"], "it is used all the same"


def test_a_draft_that_cannot_return_to_its_state_is_left_out_with_a_notice(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_MAX_CHECKPOINT_BYTES", 1)
    with loaded(zoo["target"], zoo["recurrent"]) as session:
        assert session.ready.draft is None
        assert [notice.code for notice in session.ready.notices] == [
            "draft-no-rollback"
        ]
        assert say(session, PROMPT, max_tokens=5).plan is not None
        with pytest.raises(UsageError, match="needs a draft model"):
            say(session, PROMPT, spec="model")
