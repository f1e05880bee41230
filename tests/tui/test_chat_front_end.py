"""Another model, draft model or context in the same chat; Home's models on disk."""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.chat import copying
from localspec.errors import EngineError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models.catalog import PairSettings
from localspec.models.local_files.local_model import LocalModel
from localspec.tui import home_rows
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from tests.support import scenes, tinygguf
from tests.support.app_driver import AppDriver, Chat, home_app, other, said
from tests.support.default_drafts import write_target_with_head
from tests.support.scripted_engine import ScriptedEngine, ready, wait_until
from tests.support.zoo import Zoo


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path))
    for name in ("alpha-Q8_0", "beta-Q8_0"):
        tinygguf.llama(0).write(tmp_path / f"{name}.gguf")
    return tmp_path


def loaded_files(chat: Chat) -> list[str]:
    return [Path(load.target).name for load in chat.opening.loads]


async def test_the_picker_lists_what_is_here_and_enter_loads_it(models: Path) -> None:
    async with Chat(ScriptedEngine(said), ScriptedEngine(other)) as chat:
        await chat.send("one")
        await chat.press("d", "r", "a", "f", "t", "f12")
        await chat.reaches(PickerScreen)
        await chat.sees("alpha-Q8_0 0.5 MB")
        await chat.sees("now: qwen3-8b (guesses: qwen3-0.6b)")

        await chat.press("b", "e", "t", "enter")
        await chat.until("ready")

        assert chat.on_top
        assert loaded_files(chat) == ["qwen3-8b.gguf", "beta-Q8_0.gguf"]
        assert chat.typed == "draft"
        assert chat.questions == ["one"]
        await chat.sees("From now on beta-Q8_0 answers.")


async def test_a_name_that_the_picker_does_not_list_is_taken_as_typed(
    models: Path,
) -> None:
    async with Chat() as chat:
        await chat.press("f12")
        await chat.sees("alpha-Q8_0 0.5 MB")

        await chat.press(*"nowhere", "enter")

        await chat.wait(lambda: chat.on_top and "nowhere" in chat.shown)
        assert loaded_files(chat) == ["qwen3-8b.gguf"]
        assert chat.screen.phase == "ready"


async def test_a_model_that_cannot_be_loaded_names_the_way_back(models: Path) -> None:
    broken = EngineError("The engine has exited.")
    async with Chat(ScriptedEngine(said), broken) as chat:
        await chat.send(f"/model {models / 'alpha-Q8_0.gguf'}")

        assert chat.screen.phase == "failed"
        assert "The engine has exited." in chat.shown
        assert "/model - previous model" in chat.shown


async def test_after_a_model_that_cannot_be_loaded_another_one_answers(
    models: Path,
) -> None:
    broken = EngineError("The engine has exited.")
    async with Chat(ScriptedEngine(said), broken, ScriptedEngine(other)) as chat:
        await chat.send(f"/model {models / 'alpha-Q8_0.gguf'}")

        await chat.send(f"/model {models / 'beta-Q8_0.gguf'}")
        assert "The engine has exited." not in chat.shown
        await chat.send("one")

        await chat.sees("Otherwise.")


def with_4k_context() -> ScriptedEngine:
    settings = {"target": {"n_ctx": 4096}, "chat": {"template": "own"}}
    return ScriptedEngine(other, ready=replace(ready(), settings=settings))


async def test_another_context_loads_the_model_again() -> None:
    async with Chat(ScriptedEngine(said), with_4k_context()) as chat:
        await chat.send("/ctx 4k")

        await chat.sees("ctx 0 / 4.1k")
        assert [wish.ctx for wish in chat.opening.wishes] == [None, 4096]


async def test_a_context_that_is_no_number_loads_nothing() -> None:
    async with Chat() as chat:
        await chat.send("/ctx many")

        await chat.sees("For example: /ctx 8192, or 16k.")
        assert len(chat.opening.loads) == 1


async def test_only_a_change_of_exact_mode_loads_the_model_again() -> None:
    engine = ScriptedEngine(said)
    async with Chat(engine, engine, engine) as chat:
        for value in ("on", "on", "off"):
            await chat.send(f"/set exact {value}")
            await chat.until("ready")

        assert [wish.exact for wish in chat.opening.wishes] == [False, True, False]


@asynccontextmanager
async def home_of_disk() -> AsyncIterator[AppDriver]:
    """Home, with the models that are on the disk."""
    app = scenes.home(survey=home_rows.survey_machine)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        yield AppDriver(pilot)


async def test_home_lists_models_of_no_pair_and_opens_them(models: Path) -> None:
    """As those of LM Studio."""
    async with home_of_disk() as shown:
        await shown.sees("alpha-Q8_0", "beta-Q8_0")

        await shown.press("slash", *"beta", "enter")

        await shown.reaches(ChatScreen)
        await shown.sees("beta-Q8_0")


async def test_home_lists_a_recent_model_once_and_a_part_of_a_model_not_at_all(
    models: Path,
) -> None:
    tinygguf.llama(0).write(models / "mmproj-alpha-F16.gguf")
    recent_pairs.add(ResolvedPair(models / "alpha-Q8_0.gguf", None))

    async with home_of_disk() as shown:
        await shown.sees("beta-Q8_0")

        assert shown.shown.count("alpha-Q8_0") == 1
        assert "mmproj" not in shown.shown


async def test_home_refuses_to_open_a_head_that_is_named_like_a_model(
    models: Path, zoo: Zoo
) -> None:
    shutil.copy(zoo["eagle3"], models / "gamma-Q8_0.gguf")
    async with home_of_disk() as shown:
        await shown.sees("gamma-Q8_0")

        await shown.press("slash", *"gamma", "enter")

        await shown.sees("is a draft head, not a")
        assert not shown.is_on(ChatScreen)


async def test_a_model_of_ollama_has_its_name_there(tmp_path: Path) -> None:
    blob = tinygguf.llama(0).write(tmp_path / f"sha256-{'a' * 64}")
    model = LocalModel(blob, 1, None, "tiny:3b", None, "a" * 64, False, "ollama", False)
    recent_pairs.add(ResolvedPair(blob, None))
    app = scenes.home(survey=lambda: MachineSurvey(scenes.MACHINE, (model,)))
    async with app.run_test(size=(120, 40)) as pilot:
        shown = AppDriver(pilot)
        await shown.sees("tiny:3b")
        assert "sha256" not in shown.shown.replace(str(blob.parent), "")
        await shown.press("down", "enter")
        await shown.reaches(ChatScreen)
        assert "tiny:3b" in shown.shown and "sha256" not in shown.shown


@pytest.fixture(autouse=True)
def preset(tmp_path: Path) -> None:
    text = '[presets.poet]\nsystem = "Answer in verse."\ntemperature = 1.2\n'
    (tmp_path / "config.toml").write_text(text)


async def test_a_preset_is_chosen_from_the_list() -> None:
    async with Chat() as chat:
        await chat.send("/preset")
        assert isinstance(chat.app.screen, PickerScreen)
        await chat.sees("poet temperature 1.2")

        await chat.press("enter")
        await chat.wait(lambda: chat.on_top)

        session = chat.screen.session
        assert session.conversation.system == "Answer in verse."
        assert session.settings.sampling.temperature == 1.2


async def test_the_model_that_answers_already_is_not_loaded_again(models: Path) -> None:
    """It may have been opened by another name, with other suggested settings."""
    target = models / "alpha-Q8_0.gguf"
    suggested = PairSettings(temperature=0.2)
    async with Chat(
        pair=ResolvedPair(target, None, suggested_settings=suggested)
    ) as chat:
        await chat.send("/model alpha-Q8_0")
        await chat.sees("answers already")
        assert len(chat.opening.loads) == 1


async def test_a_draft_that_nobody_named_can_be_named(tmp_path: Path) -> None:
    """Then it is used also where it does not pay."""
    target = write_target_with_head(tmp_path)
    pair = launch.with_default_draft(ResolvedPair(target, None))
    async with Chat(pair=pair) as chat:
        await chat.send(f"/draft {pair.draft}")
        await chat.wait(lambda: len(chat.opening.loads) == 2)
        assert [wish.default_draft != "" for wish in chat.opening.wishes] == [
            True,
            False,
        ]


async def test_home_opens_a_new_chat_with_a_preset() -> None:
    async with home_app() as home:
        await home.sees("New chat with a preset poet temperature 1.2")
        await home.press("end", "enter")
        await home.until("ready")
        session = home.screen.session
        assert session.conversation.system == "Answer in verse."
        assert session.settings.sampling.temperature == 1.2


PAGE = Path(__file__).parents[2] / "docs" / "quality" / "habits.md"
ENDS = "(ends)"


class Habit(NamedTuple):
    typed: str
    shown: str


def habits() -> Iterator[Habit]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            yield Habit(cells[0].strip("`"), cells[3].strip("`"))


@pytest.mark.parametrize("habit", habits(), ids=lambda habit: habit.typed)
async def test_a_habit(
    habit: Habit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(copying, "copy", lambda *_: "Copied.")
    async with Chat(ScriptedEngine(said)) as chat:
        if habit.typed not in ("escape", "//usr"):
            await chat.send("first question")
        if habit.typed == "ctrl+j":
            await chat.press(*"hello")
        if habit.typed.startswith("/"):
            chat.screen.composer.replace_text(habit.typed)
            await chat.press("enter")
        else:
            await chat.press(habit.typed)
        if habit.shown == ENDS:
            assert not chat.app.is_running or chat.app._exit
            return
        await wait_until(chat.pilot, lambda: habit.shown in chat.shown)
        expected = {"ctrl+j": "hello\n", "up": "first question"}.get(habit.typed, "")
        assert chat.typed == expected
