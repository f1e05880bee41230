"""What the shell completes, and what a command imports before it does."""

import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.history import ChatHistory
from tests.chat.saved_chats import put
from tests.support.run_command import ROOT, command, finish, localspec


def completed(words: str) -> list[str]:
    """What bash offers for the last word; a space at the end begins a new one."""
    position = len(words.split())
    if not words.endswith(" "):
        position -= 1
    env = {
        "_LOCALSPEC_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(position),
    }
    done = localspec(env=env)
    assert done.code == 0, done.err
    return [line.removeprefix("plain,") for line in done.text.splitlines()]


def test_numbers_of_chats_are_completed() -> None:
    with closing(ChatHistory.open()) as history:
        number = put(history, ("hello", "Hi!")).chat_id
    assert str(number) in completed("localspec export ")


def test_what_is_completed() -> None:
    for words, offered in [
        ("localspec pu", ["pull"]),
        ("localspec pull qwen3-8b+", ["qwen3-8b+lookup", "qwen3-8b+qwen3-0.6b"]),
        ("localspec run dem", ["demo", "demo-draft", "demo-target"]),
        ("localspec pair s", ["suggest"]),
        ("localspec pair suggest phi-4-m", ["phi-4-mini"]),
        ("localspec run --draft qwen3-0.", ["qwen3-0.6b"]),
        ("localspec config set scr", ["screen.theme"]),
        ("localspec config set screen.theme h", ["high-contrast"]),
        ("localspec config get keys.chat.s", ["keys.chat.send"]),
    ]:
        found = [each for each in completed(words) if not each.startswith("file,")]
        assert set(offered) <= set(found), found
        assert all(each.startswith(words.rsplit(maxsplit=1)[-1]) for each in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_is_taught(shell: str, tmp_path: Path) -> None:
    done = localspec("completion", shell)
    assert done.code == 0 and "_LOCALSPEC_COMPLETE" in done.text
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_bytes(done.out)
        assert subprocess.run([shell, "-n", script], check=False).returncode == 0


def test_no_verb_loads_what_it_does_not_need(tmp_path: Path) -> None:
    """The hub's library takes 200 ms, and the screens do, too."""
    listed = tmp_path / "site"
    listed.mkdir()
    (listed / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "heavy = ('huggingface_hub', 'textual', 'rich', 'yaml', 'numpy', 'llama_cpp', 'httpx', "
        "'psutil', 'localspec.engine')\n"
        "say = lambda: print(*[n for n in heavy if n in sys.modules], file=sys.stderr)\n"
        "atexit.register(say)\n"
    )
    env = {"PYTHONPATH": f"{listed}:{ROOT}"}
    for arguments, loaded in {
        ("--help",): "",
        ("run", "--help"): "",
        ("run", "--no-such-option"): "",
        ("run", "absent.gguf", "-p", "x"): "yaml",
        ("pair", "suggest", "--vram", "8"): "yaml psutil",
        ("search", "x", "--offline"): "",
    }.items():
        done = finish(command(*arguments), env=env)
        assert done.err.splitlines()[-1] == loaded, (arguments, done.err)
