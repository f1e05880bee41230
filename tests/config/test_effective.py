"""Effective settings: reading, errors with their positions, and origins."""

from pathlib import Path

import pytest

from localspec import config
from localspec.config import SETTINGS
from localspec.errors import UsageError
from localspec.models.hub.client import HubClient
from localspec.models.local_files import inventory
from tests.config.conftest import changed_values

PRIVATE = {"chats.keep": False, "network.offline": True}


def test_settings_and_keys_are_read(file: Path) -> None:
    assert changed_values(config.load()) == {}
    file.write_text(
        '[screen]\ntheme = "high-contrast"\nascii = true\n[chats]\noverflow = "summarise"\n'
        "[keys]\nchat.send = 'f9'\n'chat.stop' = ' f11 , f12 '\n[newer]\nx = 1\n"
    )
    assert changed_values(config.load()) == {
        "screen.theme": "high-contrast",
        "screen.ascii": True,
        "chats.overflow": "summarise",
        "keys.chat.send": "f9",
        "keys.chat.stop": "f11,f12",
    }


def test_an_error_has_its_line_its_key_what_was_expected_and_what_came(
    file: Path,
) -> None:
    for text, said in [
        ("[screen]\nascii = \n", ":2:9: invalid value"),
        ("[screen", ":1:8: expected ']'"),
        ("\ud8ff", ":1: the file is not UTF-8 text"),
        (
            "[screen]\nascii = 'yes'\n",
            ':2: screen.ascii must be true or false, not "yes".',
        ),
        (
            "[downloads]\n# slow\nlimit = 0\n",
            ":3: downloads.limit must be a number of MB",
        ),
        ("[downloads]\nlimit = true\n", "above 0, not true."),
        ("[run]\npair = ''\n", ":2: run.pair must be a pair"),
        ("[models]\nfolder = 'here'\n", ":2: models.folder must be the absolute path"),
        ("[keys]\n'chat.send' = 3\n", ":2: keys.chat.send must be the name of a key"),
        ("[x]\ny = 1\n[ chats ]  # mine\n'keep' = 1\n", ":4: chats.keep must be true"),
        ("keys = 3", ":1: keys must be a table: [keys]"),
        ("presets = {a = 1}", ":1: presets.a must be a table: [presets.a]"),
    ]:
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(UsageError) as raised:
            config.load()
        assert (
            raised.value.message.startswith(f"{file}:") and said in raised.value.message
        )
        assert raised.value.hint == "Fix it: localspec config edit"


def test_an_unknown_key_is_a_warning_with_the_nearest(file: Path) -> None:
    for text, said in [
        (
            "[screen]\ntehme = 'x'\n",
            ":2: unknown setting screen.tehme; did you mean screen.theme?",
        ),
        ("theme = 'x'\n", ":1: unknown setting theme; did you mean screen.theme?"),
        (
            "[tomorrow]\nweather = 'fine'\n",
            "unknown setting tomorrow.weather; it is ignored.",
        ),
        ("[keys]\nchat.sned = 'f9'\n", "did you mean keys.chat.send?"),
    ]:
        file.write_text(text)
        view = config.resolve(key_ids={"chat.send"})
        assert view.errors == () and said in view.warnings[0]
        assert not any(key in SETTINGS for key in changed_values(config.load()))


def test_privacy_is_not_lost_by_a_typo(file: Path) -> None:
    file.write_text("[chats]\nkeep = 'no'\n")
    assert changed_values(config.resolve()) == {"chats.keep": False}
    file.write_text("[chats]\nkeep = false\n[network]\noffline = true\n[screen\n")
    assert changed_values(config.resolve()) == PRIVATE
    file.write_text("[screen\n")  # keep and offline do not occur
    assert changed_values(config.resolve()) == {}
    file.write_bytes(b"\xff\xfe\x00")  # it is unknown what was set
    assert changed_values(config.resolve()) == PRIVATE


def test_every_value_has_a_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CHATS_KEEP", "off")
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "2,5")
    assert changed_values(config.load()) == {
        "chats.keep": False,
        "downloads.limit": 2.5,
    }
    monkeypatch.setenv("LOCALSPEC_DOWNLOADS_LIMIT", "fast")
    with pytest.raises(UsageError, match="LOCALSPEC_DOWNLOADS_LIMIT must be") as raised:
        config.load()
    assert "edit" not in raised.value.hint  # the error is not in the file
    assert len({value.env_var for value in SETTINGS.values()}) == len(SETTINGS)


def test_values_are_used(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCALSPEC_MODELS_DIR", raising=False)
    file.write_text(f"[models]\nfolder = '{tmp_path}'\n[network]\noffline = true\n")
    assert inventory.models_folder() == tmp_path and HubClient().offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not HubClient().offline
