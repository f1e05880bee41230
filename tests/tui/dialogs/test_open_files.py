"""The dialog that opens model files: completion, verdicts, and the fit of a pair."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from localspec.tui.dialogs.open_files import OpenFilesScreen
from tests.support import head_models, wizards
from tests.support.app_driver import AppDriver, home_app
from tests.support.zoo import Zoo
from tests.tui.screens.test_wizard import shown


async def test_enter_takes_the_completed_path(tmp_path: Path, zoo: Zoo) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(zoo["parrot"], tmp_path / "models" / "parrot.gguf")
    async with home_app() as one:
        await one.press("o")
        field = one.app.screen.query_one("#target", Input)
        field.value = str(tmp_path / "mod")
        await one.press("enter")
        assert field.value == f"{tmp_path}/models/"
        assert field.has_focus
        await one.press("p", "enter")
        assert field.value == f"{tmp_path}/models/parrot.gguf"
        await one.sees("a GGUF model")
        assert not field.has_focus


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("gone.gguf", "There is no file"),
        ("text.gguf", "is a text file"),
        ("~nobody-of-this-name/m", "There is no file"),
        ("/" + "a" * 300, "Check its permissions."),
    ],
)
async def test_what_cannot_be_opened_says_why(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.gguf").write_text("A letter to the landlord.")
    async with home_app() as one:
        await one.press("o")
        one.app.screen.query_one("#target", Input).value = path
        await one.press("enter")
        verdict = one.app.screen.query_one("#target-verdict", Static).content
        assert reason in str(verdict)


class FilesDriver(AppDriver):
    """The dialog, opened from the wizard."""

    @property
    def dialog(self) -> OpenFilesScreen:
        return self.top(OpenFilesScreen)

    def name_files(self, target: str, draft: str = "") -> None:
        self.dialog.query_one("#target", Input).value = target
        self.dialog.query_one("#draft", Input).value = draft


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FilesDriver]:
    async with shown(wizards.stock(tmp_path), "1", "o") as wizard:
        yield FilesDriver(wizard.pilot)


async def test_a_model_of_ones_own_has_its_fit(files: FilesDriver, zoo: Zoo) -> None:
    files.name_files(str(zoo["chatty"]))
    await files.press("enter")
    await files.sees("a GGUF model", "with context", "with prompt lookup")


async def test_a_pair_of_ones_own_has_its_fit(files: FilesDriver, zoo: Zoo) -> None:
    files.name_files(str(zoo["chatty"]), str(zoo["chatty"]))
    await files.sees("with the draft model", "tok/s")


async def test_a_head_in_another_folder_has_its_fit(
    files: FilesDriver, tmp_path: Path
) -> None:
    """The paths are as a file manager pastes them."""
    (tmp_path / "elsewhere").mkdir()
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    eagle3 = head_models.quantised(head_models.eagle3())
    head = eagle3.write(tmp_path / "elsewhere" / "head.gguf")
    files.name_files(f"'{target}'", head.as_uri())
    await files.sees("with the EAGLE-3 head")
    assert files.dialog._check_file("draft")
    await files.sees("an EAGLE-3 head")


async def test_a_layer_of_the_models_own_that_does_not_pay_is_named(
    files: FilesDriver, tmp_path: Path
) -> None:
    inside = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    files.name_files(str(inside))
    await files.sees("Not drafting with the model's own MTP layer: about")


async def test_escape_leads_back_to_the_wizard(files: FilesDriver) -> None:
    await files.press("escape")
    await files.sees("2 of 3")
