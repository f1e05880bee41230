"""Environments that lack something: the command works, or one line says why not."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.command import ROOT, TIMEOUT, Done, command, environment, harmful, localspec
from tests.support.downloads import wait_for
from tests.support.long_cases import often
from tests.support.zoo import HELLO_TEXT, Zoo

if sys.platform == "win32":
    pytest.skip("POSIX limits, mounts and names", allow_module_level=True)

ASK = ("-p", "a", "--temperature", "0", "--draft", "none")


def in_shell(before: str, *arguments: str | Path, env: dict[str, str] | None = None) -> Done:
    """The command after other words in a shell of its own, whose limits and mounts it has."""
    words = " ".join(map(shlex.quote, map(str, command(*arguments))))
    done = subprocess.run(
        ["sh", "-c", f"{before} {words}"],
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def answers(done: Done) -> None:
    assert (done.code, done.text) == (0, f"{HELLO_TEXT}\n"), done.err


def one_line(done: Done, code: int, words: str) -> None:
    """What happened, and what to do."""
    assert done.code == code, done.err
    assert words in done.err
    lines = [line for line in done.err.splitlines() if "No GPU" not in line]  # of a GPU's build
    assert len(lines) == 2 and "Traceback" not in done.err
    assert "This is a bug" not in done.err


# --- limits and places ------------------------------------------------------------------------


@pytest.mark.parametrize("files", [8, 16])
def test_few_files_may_be_open(files: int, zoo: Zoo) -> None:
    done = in_shell(f"ulimit -n {files}; exec", "run", zoo["parrot"], *ASK)
    if files == 8:
        one_line(done, 9, "Too many open files")
        assert "ulimit -n" in done.err
    else:
        answers(done)


@pytest.mark.skipif(not shutil.which("unshare"), reason="no disk can be mounted here")
@pytest.mark.parametrize("mount", ["-o size=4k,noexec tmpfs /tmp", "-o ro tmpfs /dev/shm"])
def test_no_room_for_temporary_files(mount: str, zoo: Zoo, tmp_path: Path) -> None:
    if Path(mount.rsplit(maxsplit=1)[-1]) in (*Path(sys.executable).parents, *ROOT.parents):
        pytest.skip("localspec itself lies there")
    place = Path("/var/tmp") / f"localspec-{os.getpid()}"
    place.mkdir()
    try:
        model = shutil.copy(zoo["parrot"], place / "model.gguf")
        shell = f"mount -t tmpfs {mount} && exec"
        asked = command("run", model, *ASK)
        words = ["unshare", "-rm", "sh", "-c", f'{shell} "$@"', "sh"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no disk can be mounted here")
        env = environment({"LOCALSPEC_DATA_DIR": str(place / "data")})
        done = subprocess.run(
            [*words, *asked], env=env, capture_output=True, timeout=TIMEOUT, check=False
        )
        answers(Done(done.returncode, done.stdout, done.stderr.decode()))
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("home", ["", "/dev/null"])
def test_a_home_that_is_none(home: str, zoo: Zoo, tmp_path: Path) -> None:
    """One answer needs no place to write; nothing to write to is no reason to refuse it."""
    away = "env -u HOME -u LOCALSPEC_DATA_DIR -u HF_HOME"
    before = f"{away} HOME={home}" if home else away
    answers(in_shell(f"exec {before}", "run", zoo["parrot"], *ASK))
    listed = in_shell(f"exec {before}", "list")
    assert listed.code == 0 and "Traceback" not in listed.err


def test_a_data_folder_that_takes_nothing(zoo: Zoo) -> None:
    env = {"LOCALSPEC_DATA_DIR": "/proc/nowhere"}
    answers(localspec("run", zoo["parrot"], *ASK, env=env))
    one_line(localspec("history", "rm", "1", "-y", env=env), 3, "There is no chat")


def test_folders_that_may_not_be_entered(zoo: Zoo) -> None:
    """Such as that of Ollama's service, which is its own user's only.

    As root every folder may be entered: this name is refused to everyone in the same way.
    """
    names = ("LOCALSPEC_DATA_DIR", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE")
    env = dict.fromkeys((*names, "XDG_CONFIG_HOME"), f"/tmp/{'a' * 300}")
    env["LOCALSPEC_CONFIG"] = os.devnull
    answers(localspec("run", zoo["parrot"], *ASK, env=env))
    assert localspec("list", env=env).code == 0
    assert "this check failed" not in localspec("doctor", env=env).text


# --- Python and its parts ---------------------------------------------------------------------


def test_python_without_assertions(zoo: Zoo) -> None:
    answers(localspec("run", zoo["parrot"], *ASK, env={"PYTHONOPTIMIZE": "2"}))
    assert localspec("run", "--help", env={"PYTHONOPTIMIZE": "2"}).code == 0


@pytest.mark.parametrize(
    ("part", "code", "words"),
    [
        ("click", 1, "No module named 'click'"),
        ("yaml", 1, "A package that localspec needs cannot be imported: No module named 'yaml'."),
        ("llama_cpp", 9, "No module named 'llama_cpp'"),
    ],
)
def test_a_part_that_is_missing(part: str, code: int, words: str, tmp_path: Path) -> None:
    missing = f"raise ModuleNotFoundError(\"No module named '{part}'\", name='{part}')\n"
    (tmp_path / f"{part}.py").write_text(missing)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = localspec("run", "demo", *ASK, env=env)  # a name needs the catalogue, a path does not
    one_line(done, code, words)
    assert "nstall" in done.err


# --- names ------------------------------------------------------------------------------------

NAMES = {
    "space": "with a space",
    "dash": "-p",
    "line": "two\nlines",
    "unicode": "уни漢字🙂",
    "255-bytes": "a" * 250,
    "no-utf-8": os.fsdecode(b"bad\xff\xfe"),
    "escape": "\x1b]0;owned\x07",
}


@pytest.mark.parametrize("name", often(NAMES, ("escape",)))
def test_a_file_of_any_name(name: str, zoo: Zoo, tmp_path: Path) -> None:
    """It runs, alone, as its own draft and as a link; it is shown, listed and removed."""
    folder = tmp_path / "models"
    folder.mkdir()
    try:
        path = Path(shutil.copy(zoo["parrot"], folder / f"{name}.gguf"))
    except OSError:
        pytest.skip("no such name on this disk")
    env = {"LOCALSPEC_MODELS_DIR": str(folder)}
    answers(localspec("run", path, *ASK, env=env))
    inside = localspec(*("run", "-p", "a", "--temperature", "0"), "--", path.name, cwd=folder)
    assert inside.code == 0, inside.err
    drafted = localspec("run", path, "--draft", path, "-p", "a", "--json", env=env)
    assert drafted.code == 0 and drafted.document["draft"], drafted.err
    for verb in ("show", "fit"):
        done = localspec(verb, path, env=env)
        assert done.code == 0 and not harmful(done.out), done.err
    listed = localspec("list", env=env)
    assert listed.code == 0 and "models folder" in listed.text and not harmful(listed.out)
    assert "not verified" in listed.text, "where nobody said what it should hold"
    assert localspec("list", "--json", env=env).code == 0
    removed = localspec("rm", "-y", "--", path, env=env)
    assert removed.code == 0, removed.err
    assert not path.exists()


# --- prompts ----------------------------------------------------------------------------------

INVALID = os.fsdecode(b"a\xff\xed\xa0\xbd")


@pytest.mark.parametrize("form", [["--json"], ["--tokens", "--stats", "-v"]])
def test_bytes_that_are_no_text_in_any_argument(form: list[str], zoo: Zoo) -> None:
    """A stray byte, and half of a surrogate pair."""
    done = localspec(
        *("run", zoo["chatty"], "-p", INVALID, "--system", INVALID, "--stop", INVALID),
        *("--max-tokens", "3", *form),
    )
    assert done.code == 0, done.err
    for more in (("show", INVALID), ("history", "search", INVALID), ("export", INVALID)):
        assert "Traceback" not in localspec(*more).err


def test_a_model_that_is_missing_leaves_no_engine_behind(tmp_path: Path) -> None:
    """The engine process starts before the model is looked for."""
    ours = {"LOCALSPEC_TEST_MARK": str(tmp_path)}
    done = subprocess.run(
        command("run", tmp_path / "none.gguf", "-p", "a"),
        env=environment(ours),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode != 0 and b"none.gguf" in done.stderr
    wait_for(lambda: not has_process(ours))


def has_process(variables: dict[str, str]) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if variables.items() <= process.environ().items():
                return True
    return False


def test_a_prompt_without_end_is_not_cut_unsaid(zoo: Zoo) -> None:
    shell = f"head -c {65 * 2**20} /dev/zero |"
    one_line(in_shell(shell, "run", zoo["parrot"]), 2, "The prompt is longer than 64 MiB")


# --- words that a terminal may not know -------------------------------------------------------


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["C", "latin-1"],
)
def test_characters_that_cannot_be_written(locale: dict[str, str], zoo: Zoo) -> None:
    done = localspec("run", zoo["chatty"], "-p", "é漢", "--temperature", "0", env=locale)
    assert done.code == 0, done.err
    assert b"**??** and a caf" in done.out
    assert localspec("list", env=locale).code == 0
