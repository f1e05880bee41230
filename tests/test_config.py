"""The user's configuration: reading, errors, origins, and writing."""

import os
import re
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from localspec import config
from localspec.api.arguments import AnswerOptions, MachineOptions
from localspec.chat.settings import ANSWER_OPTIONS, ChatSettings
from localspec.config import SETTINGS, toml_file
from localspec.config.option_types import Option, number
from localspec.config.options import select
from localspec.config.toml_file import iterate_values
from localspec.errors import StorageError, UsageError
from localspec.models.hub.client import HubClient
from localspec.models.local_files import inventory
from localspec.tui import themes

HIGH_CONTRAST = {"screen.theme": "high-contrast", "screen.ascii": True, "keys.chat.send": "f9"}
PRIVATE = {"chats.keep": False, "network.offline": True}
DOCS = Path(__file__).resolve().parents[1] / "docs" / "settings.md"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(path))
    return path


def chosen(view: config.EffectiveConfig) -> dict[str, object]:
    """The settings and keys that are not as they come."""
    settings = view.settings.items()
    changed = {key: one.current for key, one in settings if one.current != one.option.default}
    return changed | {f"keys.{id_}": keys for id_, keys in view.key_bindings.items()}


def test_without_a_file_everything_is_as_it_comes(file: Path) -> None:
    assert chosen(config.load()) == {}


def test_theme_ascii_and_keys(file: Path) -> None:
    file.write_text('[screen]\ntheme = "high-contrast"\nascii = true\n[keys]\n"chat.send" = "f9"\n')
    assert chosen(config.load()) == HIGH_CONTRAST


def test_what_to_do_with_a_full_context(file: Path) -> None:
    file.write_text('[chats]\noverflow = "summarise"\n')
    assert chosen(config.load()) == {"chats.overflow": "summarise"}


def test_what_is_not_known_is_left_alone(file: Path) -> None:
    file.write_text('[tomorrow]\nx = 1\n[screen]\nblink = "never"\n')
    assert chosen(config.load()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "[screen",
        'screen = "dark"',
        "keys = 3",
        "chats = 3",
        "[chats]\noverflow = 'forget'",
        "[screen]\ntheme = 3",
        "[keys]\na = 3",
        "chats = 1",
        "[chats]\nkeep = 1",
        "a = 1\na = 2",
    ],
)
def test_a_damaged_file_is_named_with_its_fault(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=r"config\.toml"):
        config.load()


def test_bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        config.load()


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[screen]\nascii = \n", ":2:9: invalid value"),
        ("[screen", ":1:8: expected ']'"),
        ("[screen]\nascii = 'yes'\n", ':2: screen.ascii must be true or false, not "yes".'),
        ("screen.ascii = 3", ":1: screen.ascii must be true or false, not 3."),
        ("[downloads]\n# slow\nlimit = 0\n", ":3: downloads.limit must be a number of MB"),
        ("[downloads]\nlimit = true\n", "above 0, not true."),
        ("[downloads]\nlimit = inf\n", "above 0, not inf."),
        ("[run]\npair = ''\n", ":2: run.pair must be a pair"),
        ("[models]\nfolder = 'here'\n", ":2: models.folder must be the absolute path"),
        ("[keys]\n'chat.send' = 3\n", ":2: keys.chat.send must be the name of a key"),
        ("chats = 1", ":1: chats must be a table: [chats]"),
    ],
)
def test_a_fault_has_its_line_its_key_what_was_expected_and_what_came(
    file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        config.load()
    assert raised.value.message.startswith(f"{file}:") and said in raised.value.message
    assert raised.value.hint == "Fix it: localspec config edit"


def test_what_is_wrong_is_as_it_comes_and_the_rest_counts(file: Path) -> None:
    file.write_text("[screen]\ntheme = 'pink'\nascii = true\n")
    view = config.resolve()
    assert view.get("screen.theme") == "localspec-dark" and view.get("screen.ascii") is True
    assert len(view.errors) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[screen]\ntehme = 'x'\n", ":2: unknown setting screen.tehme; did you mean screen.theme?"),
        ("theme = 'x'\n", ":1: unknown setting theme; did you mean screen.theme?"),
        ("[chat]\nkeep = true\n", "did you mean chats.keep?"),
        ("[tomorrow]\nweather = 'fine'\n", "unknown setting tomorrow.weather; it is ignored."),
        ("[keys]\nchat.sned = 'f9'\n", "did you mean keys.chat.send?"),
    ],
)
def test_an_unknown_key_is_a_warning_with_the_nearest(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    view = config.resolve(key_ids={"chat.send": "chat.send"})
    assert view.errors == () and said in view.warnings[0]
    assert not any(key in SETTINGS for key in chosen(config.load()))


def test_privacy_is_not_lost_by_a_typo(file: Path) -> None:
    file.write_text("[chats]\nkeep = 'no'\n")
    assert chosen(config.resolve()) == {"chats.keep": False}
    file.write_text("[chats]\nkeep = false\n[network]\noffline = true\n[screen\n")
    assert chosen(config.resolve()) == PRIVATE
    file.write_text("[screen\n")  # keep and offline do not occur
    assert chosen(config.resolve()) == {}
    file.write_bytes(b"\xff\xfe\x00")  # it is unknown what was set
    assert chosen(config.resolve()) == PRIVATE


def test_a_mark_of_notepad_and_lines_of_windows(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[screen]\r\nascii = true\r\n")
    assert config.load().get("screen.ascii")
    toml_file.set_value("screen.theme", "monochrome")
    assert b'ascii = true\r\ntheme = "monochrome"\r\n' in file.read_bytes()


def test_dots_without_quotes_in_keys(file: Path) -> None:
    file.write_text("[keys]\nchat.send = 'f9'\n'chat.stop' = ' f11 , f12 '\n")
    assert config.load().key_bindings == {"chat.send": "f9", "chat.stop": "f11,f12"}


# --- origins ------------------------------------------------------------------------------------


def test_option_before_variable_before_file_before_default(file: Path) -> None:
    file.write_text("[network]\noffline = true\n")
    held = {
        "default": config.resolve(environ={}).settings["screen.theme"],
        "config.toml": config.resolve(environ={}).settings["network.offline"],
        "environment": config.resolve(environ={"HF_HUB_OFFLINE": "0"}).settings["network.offline"],
        "command line": config.resolve(
            environ={"HF_HUB_OFFLINE": "1"}, flags={"HF_HUB_OFFLINE": "--offline"}
        ).settings["network.offline"],
    }
    assert {name: one.origin for name, one in held.items()} == {name: name for name in held}
    words = ["default", "config.toml", "HF_HUB_OFFLINE", "--offline"]
    assert [one.origin_text for one in held.values()] == words
    assert [one.current for one in held.values()] == ["localspec-dark", True, False, True]


def test_every_value_has_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CHATS_KEEP", "off")
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "2,5")
    assert chosen(config.load()) == {"chats.keep": False, "downloads.limit": 2.5}
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "fast")
    with pytest.raises(UsageError, match="LOCALSPEC_DOWNLOADS_LIMIT must be") as raised:
        config.load()
    assert "edit" not in raised.value.hint  # the error is not in the file
    assert len({value.env_var for value in SETTINGS.values()}) == len(SETTINGS)


def test_values_are_used(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_MODELS_DIR", raising=False)
    file.write_text(f"[models]\nfolder = '{tmp_path}'\n[network]\noffline = true\n")
    assert inventory.models_folder() == tmp_path
    assert HubClient().offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not HubClient().offline


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


# --- writing ------------------------------------------------------------------------------------

OWN = """\
# mine, since 2024
[screen]
theme = 'monochrome'   # the dark room

# what I type
[keys]                 # f-keys
chat.send = 'ctrl+s'

[tomorrow]
x = [1,
     2]
"""


def test_a_change_leaves_comments_order_and_the_unknown(file: Path) -> None:
    file.write_text(OWN)
    toml_file.set_value("screen.theme", "high-contrast")
    toml_file.set_value("screen.ascii", True)
    toml_file.set_value("keys.chat.send", "f9")
    toml_file.set_value("downloads.limit", 2.5)
    expected = OWN.replace("'monochrome'", '"high-contrast"').replace("'ctrl+s'", '"f9"')
    expected = expected.replace("room\n", "room\nascii = true\n")
    assert file.read_text() == f"{expected}\n[downloads]\nlimit = 2.5\n"
    toml_file.set_value("downloads.limit", None)
    assert "limit" not in file.read_text()
    assert chosen(config.load()) == HIGH_CONTRAST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "screen = {ascii = false}\n",
        "screen.ascii = false\n",
        toml_file.render_template(),
        "x = 1",
    ],
)
@pytest.mark.parametrize("key", ["screen.ascii", "chats.keep", "keys.chat.send"])
def test_whatever_there_is_a_change_is_read_back(file: Path, text: str, key: str) -> None:
    file.write_text(text)
    value: object = "f9" if key.startswith("keys") else SETTINGS[key].default is False
    toml_file.set_value(key, value)
    found = dict(iterate_values(tomllib.loads(file.read_text())))
    assert found[key] == value
    toml_file.set_value(key, None)
    assert ("x = 1" in text) == ("x = 1" in file.read_text())
    assert key not in dict(iterate_values(tomllib.loads(file.read_text())))


def test_nothing_to_take_out_is_nothing_to_write(file: Path) -> None:
    toml_file.set_value("screen.theme", None)
    assert not file.exists()


def test_a_file_that_cannot_be_read_is_never_written(file: Path) -> None:
    for damage in (b"[screen\n# precious\n", b"\xff\xfe", b"#" * 1_000_001):
        file.write_bytes(damage)
        with pytest.raises(UsageError, match="Nothing was changed"):
            toml_file.set_value("screen.theme", "monochrome")
        assert file.read_bytes() == damage


def test_what_another_version_understands_stays(file: Path) -> None:
    """The file has no version: unknown keys are kept."""
    file.write_text("[screen]\ntheme = 7\n[newer]\nthing = {a = 1}\n")
    toml_file.set_value("screen.ascii", True)
    assert file.read_text() == "[screen]\ntheme = 7\nascii = true\n[newer]\nthing = {a = 1}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="rights and links are different there")
def test_rights_and_links_stay(file: Path, tmp_path: Path) -> None:
    toml_file.set_value("screen.ascii", True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    dotfiles = tmp_path / "dotfiles.toml"
    dotfiles.write_text("")
    dotfiles.chmod(0o644)
    file.unlink()
    file.symlink_to(dotfiles)
    toml_file.set_value("screen.ascii", True)
    assert file.is_symlink() and "ascii = true" in dotfiles.read_text()
    assert stat.S_IMODE(dotfiles.stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(OWN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        toml_file.set_value("screen.ascii", True)
    assert file.read_text() == OWN
    assert [one.name for one in file.parent.glob(".config-*")] == []


def test_a_folder_that_is_not_there_is_refused_where_it_is_typed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        toml_file.parse_value(SETTINGS["models.folder"], str(tmp_path / "nowhere"))
    assert toml_file.parse_value(SETTINGS["models.folder"], str(tmp_path)) == str(tmp_path)


def test_the_template_is_all_comments(file: Path) -> None:
    file.write_text(toml_file.render_template())
    assert config.resolve().warnings == () and chosen(config.load()) == {}
    text = re.sub(r"(?m)^# (\w+ = )", r"\1", toml_file.render_template()).replace("= …", "= 1")
    file.write_text(text)
    assert not config.resolve().warnings  # every line is a known setting


# --- docs/settings.md ---------------------------------------------------------------------------


def test_the_document_has_every_value_as_the_table_has_it() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    told = {key: [cell.strip() for cell in cells.split("|")] for key, cells in rows}
    assert list(told) == list(SETTINGS)
    for key, value in SETTINGS.items():
        assert told[key] == row(value), key


def row(value: Option) -> list[str]:
    """One line of the table in docs/settings.md."""
    default, setting = value.value_type.to_toml(value.default), value.setting
    usual = setting.unset_label if default is None else f"`{str(default).lower()}`"
    flags = setting.flags or (value.flag if value.about else "")
    before = f"`{value.env_var}`" + (f", `{flags}`" if flags else "")
    when = setting.takes_effect or "at once"
    return [value.label, value.value_type.expects, usual, f"{value.help} ({when})", before]


# --- the table of options -----------------------------------------------------------------------


def test_arguments_and_settings_are_those_of_the_table() -> None:
    typed = {*AnswerOptions.__annotations__, *MachineOptions.__annotations__}
    assert typed - {"raw", "probabilities"} == {option.name for option in select("python")}
    for name, option in ANSWER_OPTIONS.items():
        assert name == "temperature" or ChatSettings().get(option) == option.default, name
