"""`localspec config`, and what a damaged config.toml does to other commands."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.run_command import Done, harmful, localspec

KEY = "downloads.limit"


def config(*arguments: str, **env: str) -> Done:
    return localspec("config", *arguments, env=env)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of each test: see tests/conftest.py."""
    return tmp_path / "config.toml"


def test_set_get_list_and_back_again(file: Path) -> None:
    assert config("path").text.strip() == str(file) and not file.exists()
    assert config("set", "screen.theme", "monochrome").code == 0
    assert config("set", "keys.chat.send", "alt+s").code == 0
    assert file.read_text() == (
        '[screen]\ntheme = "monochrome"\n\n[keys]\n"chat.send" = "alt+s"\n'
    )
    assert config("get", "screen.theme").text == "monochrome\n"
    assert config("get", "keys.chat.send").text == "alt+s\n"
    assert config("get", KEY).text == "\n"
    assert config("set", "screen.theme", "--default").code == 0
    assert config("get", "screen.theme").text == "localspec-dark\n"
    done = config("set", KEY, "5", LOCALSPEC_DOWNLOADS_LIMIT="3")
    assert (
        done.code == 0 and "LOCALSPEC_DOWNLOADS_LIMIT overrides this value" in done.err
    )


def test_json_says_where_each_value_comes_from(file: Path) -> None:
    config("set", "chats.keep", "off")
    said = config("list", "--json", LOCALSPEC_DOWNLOADS_LIMIT="3").document
    values = {value["key"]: value for value in said["values"]}
    assert (said["schema"], said["path"], said["faults"]) == (1, str(file), [])
    assert (
        values["chats.keep"]["value"] is False
        and values["chats.keep"]["default"] is True
    )
    assert values["chats.keep"]["origin"] == "config.toml"
    assert values[KEY]["origin"] == "environment"
    assert values[KEY]["from"] == "LOCALSPEC_DOWNLOADS_LIMIT"
    assert values["screen.theme"]["origin"] == "default"
    one = localspec("--offline", "config", "get", "network.offline", "--json").document
    assert (one["value"], one["origin"], one["from"]) == (
        True,
        "command line",
        "--offline",
    )
    after = config("get", "models.folder", "--json", "--models-dir", str(file.parent))
    assert after.document["from"] == "--models-dir"
    keys = config("list", "--keys", "--json").document["keys"]
    assert {"keys.app.quit", "keys.chat.send"} <= {key["key"] for key in keys}


def test_a_key_that_is_in_use_is_refused(file: Path) -> None:
    file.write_text('[keys]\n"doctor.repair" = "m"\n')

    refused = config("set", "keys.doctor.copy", "m")

    assert refused.code == 2
    assert "m is already in use" in refused.err


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_name_that_is_no_utf_8_cannot_stand_in_the_file(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()

    done = config("set", "models.folder", str(folder))

    assert done.code == 2
    assert "cannot hold '\\udcff', which is no UTF-8" in done.err
    assert list(file.parent.glob(".*")) == []


def test_the_default_of_a_key_leaves_no_entry(file: Path) -> None:
    file.write_text('[keys]\n"doctor.repair" = "m"\n')

    done = config("set", "keys.doctor.repair", "--default")

    assert done.code == 0
    assert file.read_text() == "[keys]\n"


def test_what_cannot_be_is_refused_and_nothing_is_written(file: Path) -> None:
    for arguments, said in [
        (("set", "screen.theme", "pink"), 'It must be "localspec-dark"'),
        (("get", "limit"), "Did you mean downloads.limit?"),
        (("set", "temp", "1"), "Did you mean answers.temperature?"),
        (("set", "run.num_ctx", "8192"), "an option of localspec run: --ctx"),
        (("set", "answers.mirostat", "2"), "Sampling here"),
        (("set", KEY), "--default"),
        (("set", KEY, "3", "--default"), "--default"),
        (("set", "keys.chat.sned", "f9"), "Did you mean keys.chat.send?"),
        (("set", "keys.chat.send", "ctl+s"), "There is no key called"),
        (("set", "keys.chat.panel", "f2"), "f2 is already in use"),
        (("set", "keys.chat.panel", "p"), "p is needed for typing"),
    ]:
        done = config(*arguments)
        assert done.code == 2
        assert said in done.err
        assert not done.out
        assert not file.exists()


def test_another_programs_name_of_a_setting_is_written_as_ours(file: Path) -> None:
    assert config("set", "answers.temp", "0.3").code == 0
    assert file.read_text() == "[answers]\ntemperature = 0.3\n"
    assert config("get", "answers.temp").out == b"0.3\n"


def test_a_damaged_file_stops_commands_and_is_never_written(file: Path) -> None:
    before = "[screen]\ntheme = \n"
    file.write_text(before)
    where = f"{file}:2:9: invalid value"
    for verb in (
        ("list",),
        ("run", "demo", "-p", "x"),
        ("pair", "list"),
        ("history", "list"),
    ):
        done = localspec(*verb)
        assert (
            done.code == 2 and where in done.err and "localspec config edit" in done.err
        )
    document = localspec("list", "--json").document
    assert (
        document["error"]["code"] == "usage" and where in document["error"]["message"]
    )
    listed = config("list")
    assert listed.code == 2 and where in listed.err and "screen.theme" in listed.text
    assert config("set", "screen.ascii", "on").code == 2
    for verb in (("version",), ("completion", "bash"), ("config", "path")):
        assert localspec(*verb).code == 0
    done = localspec("doctor", "--fix", "-y")
    assert done.code == 1 and f"✗ {where}" in done.text and file.read_text() == before


def test_unknown_keys_are_said_and_stop_nothing(file: Path) -> None:
    file.write_bytes(
        b'["\\u001b[31m"]\nx = 1\n[screen]\ntheme = "\\u001b]0;x\\u0007"\n'
    )
    done = config("list")  # what stands in it is harmless on a terminal
    assert done.code == 2 and not harmful(done.out) and not harmful(done.err.encode())
    file.write_text("[screen]\ntehme = 'x'\n")
    done = localspec("list")
    assert done.code == 0 and "did you mean screen.theme?" in done.err
    quiet = localspec("run", "demo", "-q", "-p", "x", "--max-tokens", "1")
    assert quiet.code == 0 and "tehme" not in quiet.err


@pytest.mark.skipif(os.name == "nt", reason="the editor is a script of the shell")
def test_edit_says_what_is_wrong_afterwards(file: Path, tmp_path: Path) -> None:
    editor = tmp_path / "an editor"
    editor.write_text('#!/bin/sh\nprintf "screen.ascii = 3\\n" >> "$2"\n')
    editor.chmod(0o755)
    done = config("edit", VISUAL=f"'{editor}' --wait", EDITOR="/never")
    assert done.code == 2 and "screen.ascii" in done.err
    assert "# theme = " in file.read_text()  # it began with everything as comments
    file.write_text("")
    editor.write_text("#!/bin/sh\n")
    assert config("edit", EDITOR=f"'{editor}'", VISUAL="").code == 0
    gone = config("edit", VISUAL="/no/such/editor")
    assert gone.code == 3 and "VISUAL" in gone.err


def test_a_preferred_drafter_gives_way_where_a_pair_lacks_it() -> None:
    ask = ("run", "demo", "-p", "def f(", "--max-tokens", "2")
    assert localspec(*ask, "--spec", "eagle3").code == 2
    preferred = localspec(*ask, "--json", env={"LOCALSPEC_ANSWERS_SPEC": "eagle3"})
    assert preferred.code == 0 and preferred.document["draft"] == "demo-draft.gguf"
