"""The table of options: what the front ends and docs/settings.md are rendered from."""

import re
from pathlib import Path

import pytest

from localspec.api.arguments import AnswerOptions, MachineOptions
from localspec.chat.settings import ANSWER_OPTIONS, ChatSettings
from localspec.config import SETTINGS
from localspec.config.option_types import Option, number
from localspec.config.options import select
from localspec.tui import themes

DOCS = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_table_knows_the_themes_and_every_default_is_possible() -> None:
    assert tuple(SETTINGS["screen.theme"].value_type.words) == themes.THEME_NAMES
    for value in SETTINGS.values():
        kept = value.value_type.to_toml(value.default)
        assert kept is None or value.value_type.from_toml(kept) == value.default
        assert value.setting.unset_label or kept is not None
        assert value.label and value.help.endswith(".")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "", "1e999", "0"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        number("", above=True).parse(text)


def test_the_document_has_every_value_as_the_table_has_it() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \|(.*)\|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {key: [cell.strip() for cell in cells.split("|")] for key, cells in rows}
    assert list(told) == list(SETTINGS)
    for key, value in SETTINGS.items():
        assert told[key] == row(value), key


def row(value: Option) -> list[str]:
    """One line of the table in docs/settings.md."""
    setting = value.setting
    default = value.value_type.to_toml(value.default)
    usual = setting.unset_label if default is None else f"`{str(default).lower()}`"
    flags = setting.flags
    if not flags and value.about:
        flags = value.flag
    before = f"`{value.env_var}`"
    if flags:
        before += f", `{flags}`"
    when = setting.takes_effect or "at once"
    return [
        value.label,
        value.value_type.expects,
        usual,
        f"{value.help} ({when})",
        before,
    ]


def test_arguments_and_settings_are_those_of_the_table() -> None:
    typed = {*AnswerOptions.__annotations__, *MachineOptions.__annotations__}
    assert typed - {"raw", "probabilities"} == {
        option.name for option in select("python")
    }
    for name, option in ANSWER_OPTIONS.items():
        assert name == "temperature" or ChatSettings().get(option) == option.default, (
            name
        )
