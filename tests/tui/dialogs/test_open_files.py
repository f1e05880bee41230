"""The dialog that opens model files: completion, verdicts, and the fit of a pair."""

import shutil
from pathlib import Path

from textual.widgets import Input, Static

from localspec.tui.dialogs.open_files import OpenFilesScreen
from tests.support import head_models, wizards
from tests.support.app_driver import home_app
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
        assert field.value == f"{tmp_path}/models/" and field.has_focus
        await one.press("p", "enter")
        assert field.value == f"{tmp_path}/models/parrot.gguf"
        await one.sees("a GGUF model")
        assert not field.has_focus


async def test_what_cannot_be_opened_says_why(tmp_path: Path, zoo: Zoo) -> None:
    text = tmp_path / "no.gguf"
    text.write_text("A letter to the landlord.")
    async with home_app() as one:
        await one.press("o")
        for path, reason in (
            (tmp_path / "gone.gguf", "There is no file"),
            (text, "is a text file"),
            ("~nobody-of-this-name/m", "There is no file"),
            ("/" + "a" * 300, "Check its permissions."),
        ):
            one.app.screen.query_one("#target", Input).value = str(path)
            await one.press("enter")
            verdict = one.app.screen.query_one("#target-verdict", Static).content
            assert reason in str(verdict)


async def test_files_of_ones_own_with_their_fit(zoo: Zoo, tmp_path: Path) -> None:
    """Of a draft model, of a head elsewhere, and of a layer of the model's own."""
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    (tmp_path / "elsewhere").mkdir()
    head = head_models.quantised(head_models.eagle3()).write(
        tmp_path / "elsewhere" / "head.gguf"
    )
    inside = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    async with shown(wizards.stock(tmp_path), "1", "o") as wizard:
        screen = wizard.top(OpenFilesScreen)
        fields = [screen.query_one(name, Input) for name in ("#target", "#draft")]
        fields[0].value = str(zoo["chatty"])
        await wizard.press("enter")
        await wizard.sees("a GGUF model", "with context", "with prompt lookup")
        fields[1].value = str(zoo["chatty"])
        await wizard.sees("with the draft model", "tok/s")
        fields[0].value, fields[1].value = f"'{target}'", head.as_uri()
        await wizard.sees("with the EAGLE-3 head")
        assert screen._check_file("draft")
        await wizard.sees("an EAGLE-3 head")
        fields[0].value, fields[1].value = str(inside), ""
        await wizard.sees("Not drafting with the model's own MTP layer: about")
        await wizard.press("escape")
        await wizard.sees("2 of 3")
