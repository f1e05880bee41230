"""Whatever is wrong, a person gets one clear line, a next step and the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from localspec import cli
from localspec.errors import UsageError
from localspec.paths import package_data_dir
from tests.cli.command import Done, command, environment, harmful, localspec
from tests.support.zoo import Zoo

USAGE, NOT_FOUND, DOES_NOT_FIT, INCOMPATIBLE, STORAGE = 2, 3, 4, 5, 8
ENGINE, MODEL_FILE, TOO_LONG = 9, 12, 13
CODES = {
    USAGE: "usage",
    NOT_FOUND: "not-found",
    DOES_NOT_FIT: "does-not-fit",
    INCOMPATIBLE: "incompatible-pair",
    STORAGE: "storage",
    ENGINE: "engine",
    MODEL_FILE: "model-file",
    TOO_LONG: "prompt-too-long",
}
ASK = ("-p", "a", "--max-tokens", "5", "--temperature", "0")
DEMO = package_data_dir() / "demo" / "demo-draft.gguf"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"

Files = Callable[[str], Path]


@pytest.fixture(scope="module")
def files(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files that are no models, by name; other names are the zoo's."""
    folder = tmp_path_factory.mktemp("files")
    whole = DEMO.read_bytes()
    contents = {
        "empty.gguf": b"",
        "pointer.gguf": POINTER,
        "\x1b]0;owned\x07rude.gguf": b"words",
        "cut-half.gguf": whole[: len(whole) // 2],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    if sys.platform != "win32":
        os.mkfifo(folder / "fifo.gguf")

    def path(name: str) -> Path:
        return folder / name if name.endswith(".gguf") else zoo[name]

    return path


def told(done: Done, code: int, words: str, *, next_step: bool = True) -> None:
    """One line and the next step, on stderr alone."""
    assert done.code == code, done.err
    first, *rest = done.err.splitlines()
    assert first.startswith("localspec: ")
    assert words in first
    assert len(rest) == 1 or not next_step
    assert all(line.startswith("  ") and len(line) > 8 for line in rest)
    assert "Traceback" not in done.err
    assert "This is a bug" not in done.err
    assert not harmful(done.err.encode())


def wrong(*arguments: str | Path, code: int, words: str) -> None:
    done = localspec("run", *arguments)
    told(done, code, words)
    assert done.out == b""


# --- files that are no models ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("absent.gguf", NOT_FOUND, "There is no file"),
        ("empty.gguf", MODEL_FILE, "is empty"),
        ("pointer.gguf", MODEL_FILE, "git lfs pull"),
        ("\x1b]0;owned\x07rude.gguf", MODEL_FILE, "rude.gguf is a text file"),
        ("cut-half.gguf", MODEL_FILE, "is incomplete"),
        ("future", MODEL_FILE, "unknown model architecture: 'llama99'"),
    ],
)
def test_a_file_that_is_no_model(files: Files, name: str, code: int, words: str) -> None:
    wrong(files(name), *ASK, code=code, words=words)


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFO there")
def test_a_fifo_does_not_block(files: Files) -> None:
    wrong(files("fifo.gguf"), *ASK, code=MODEL_FILE, words="not a regular file")


@pytest.mark.parametrize(("name", "words"), [("empty.gguf", "is empty"), ("cut-half.gguf", "cut")])
def test_a_draft_that_is_no_model(files: Files, name: str, words: str) -> None:
    told(localspec("run", "demo", "--draft", files(name), *ASK), MODEL_FILE, words)


# --- pairs and names ----------------------------------------------------------------------------


def test_a_pair_that_does_not_match(files: Files) -> None:
    """The draft's token has an escape sequence."""
    words = "token 256 is 'rude' in the draft and '<0xFD>' in the target"
    pair = files("f32"), "--draft", files("renamed-rudely")
    wrong(*pair, *ASK, code=INCOMPATIBLE, words=words)


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("rnu", "demo"), USAGE, "Did you mean run?"),
        (("xyzzy",), USAGE, "See: localspec --help"),
        (("history", "lits"), USAGE, "See: localspec history --help"),
        (("rm", "nothing-like-it"), NOT_FOUND, "See: localspec list, localspec pair list"),
        (("rm", "qwen3-8bb"), NOT_FOUND, "Closest: qwen3-8b"),
    ],
)
def test_a_word_that_nobody_knows(arguments: tuple[str, ...], code: int, hint: str) -> None:
    """The nearest is offered if it is near; nothing is guessed."""
    done = localspec(*arguments)
    told(done, code, arguments[-1] if arguments[0] != "rnu" else "rnu")
    assert f"  {hint}" in done.err


@pytest.mark.parametrize(
    ("name", "words"), [("demmo", "no entry demmo"), ("\x1b[31mred", "There is no file")]
)
def test_a_pair_nobody_knows(name: str, words: str) -> None:
    wrong(name, *ASK, code=NOT_FOUND, words=words)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ctx", "2147483648"), "A context of 2,147,483,648 tokens is out of range"),
        (("--temperature", "nan"), "--temperature"),
        (("--spec", "magic"), "--spec"),
        (("--spec", "eagle3", "--draft", "none"), "'eagle3' needs a draft model"),
        (("--kv", "q8_0", "--flash-attn", "off"), "requires flash_attn"),
        (("--gpu-layers", "many"), "number of layers"),
        (("--such-an-option",), "--such-an-option"),
    ],
)
def test_a_setting_that_makes_no_sense(options: tuple[str, ...], words: str) -> None:
    wrong("demo", *ASK, *options, code=USAGE, words=words)


@pytest.mark.parametrize(
    ("arguments", "words", "help_of"),
    [
        (("fit", "demo", "--vram", "nan"), "'nan' is not a finite number", "fit"),
        (("pair", "suggest", "--vram", "0"), "'--vram'", "pair suggest"),
        (("run", "demo", "--ctx"), "'--ctx' requires an argument", "run"),
        (("--offline", "run", "demo", "--top-p", "2"), "'--top-p'", "run"),
        (("run", "demo", *ASK, "--json-schema", ""), "'--json-schema': it is empty", "run"),
        (("run", "", *ASK), "'[MODEL]': it is empty", "run"),
        (("run", "demo", *ASK, "--stop", "a", "--stop", ""), "'--stop': it is empty", "run"),
        (("list", "--models-dir", ""), "'--models-dir': it is empty", "list"),
        (("doctor", "--dismiss", ""), "'' is not 'cpu-only-build'", "doctor"),
        (("fit", "demo", "--draft", "a,b"), "'a,b' names more than one draft", "fit"),
        (("pair", "test", "demo", "a,b"), "put a space between them", "pair test"),
        (("pair", "check", "demo", "a,b"), "check one at a time", "pair check"),
        (("list", "--models-dir", "/no/such"), "there is no folder /no/such", "list"),
    ],
)
def test_a_value_that_would_count_as_none(
    arguments: tuple[str, ...], words: str, help_of: str
) -> None:
    """nan, an empty "$VARIABLE" of a script; the next step is the help that has the option."""
    done = localspec(*arguments)
    told(done, USAGE, words)
    assert done.err.endswith(f"  See: localspec {help_of} --help\n")


def options_of_commands() -> Iterator[tuple[click.Command, click.Option]]:
    context = click.Context(cli.localspec)
    for name in cli.localspec.list_commands(context):
        found = cli.localspec.get_command(context, name)
        group = found.commands.values() if isinstance(found, click.Group) else [found]
        for each in filter(None, group):
            yield from ((each, param) for param in each.params if isinstance(param, click.Option))


def test_no_option_takes_an_empty_text() -> None:
    """Whatever its command; but where an empty one means something, or its use refuses it."""
    accepting = set()
    for each, option in options_of_commands():
        if option.is_flag:
            continue
        given = {option.name or "": [""] if option.multiple else ""}
        try:
            option.handle_parse_result(click.Context(each), given, [])
        except (click.ClickException, UsageError):
            continue
        accepting.add(option.name)
    assert accepting == {
        *("prompt", "system", "workers", "chat", "gpu", "listen"),
        *("events", "api_key_file", "out", "output"),
    }


# --- prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [("-p", ""), ()])
def test_an_empty_prompt(given: tuple[str, ...]) -> None:
    told(localspec("run", "demo", *given, stdin=b""), USAGE, "The prompt is empty")


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["absent/events.jsonl", "."])
def test_events_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    done = localspec("run", "demo", *ASK, "--events", tmp_path / place)
    told(done, USAGE if place == "." else STORAGE, "", next_step=False)
    assert done.out == b""


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


@needs_full
def test_events_that_fill_the_disk(files: Files) -> None:
    told(localspec("run", files("parrot"), *ASK, "--events", FULL), STORAGE, "No space left")


@needs_full
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_an_answer_that_cannot_be_written(files: Files, redirection: str) -> None:
    asked = command("run", files("parrot"), *ASK)
    shell = ["sh", "-c", f'exec "$0" "$@" {redirection}', *asked]
    done = subprocess.run(shell, env=environment(), capture_output=True, check=False, text=True)
    reason = "No space left" if "full" in redirection else "Standard output is closed"
    told(Done(done.returncode, b"", done.stderr), STORAGE, reason)


@needs_full
def test_a_document_that_cannot_be_written(files: Files) -> None:
    """Standard output cannot take the error either."""
    asked = command("run", files("parrot"), *ASK, "--json")
    with FULL.open("w") as full:
        done = subprocess.run(
            asked, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False, text=True
        )
    assert (done.returncode, done.stderr.count("\n")) == (STORAGE, 2)
    assert "No space left" in done.stderr


# --- models that fail on the way ------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--draft", "itself", "--temperature", "1")])
def test_a_model_of_invalid_numbers(files: Files, options: tuple[str, ...]) -> None:
    path = files("nan")
    given = [path if option == "itself" else option for option in options]
    wrong(path, *ASK, *given, code=ENGINE, words="invalid numbers")


def test_what_was_said_before_invalid_numbers_stays(files: Files) -> None:
    done = localspec("run", files("nan-later"), *ASK)
    told(done, ENGINE, "invalid numbers")
    assert done.text == " Hello, wor\n"


HEAD = Path(__file__).parents[2] / "localspec" / "data" / "demo" / "demo-eagle3.gguf"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (USAGE, ("demo", "--such-an-option")),
        (NOT_FOUND, ("absent.gguf",)),
        (INCOMPATIBLE, ("f32", "--draft", str(HEAD))),
        (ENGINE, ("nan-later",)),
        (TOO_LONG, ("parrot", "-p", "z" * 2000)),
    ],
)
def test_with_json_the_error_is_the_document(
    files: Files, code: int, arguments: tuple[str, ...]
) -> None:
    name = arguments[0]
    model = name if name == "demo" else files(name)
    done = localspec("run", *ASK, model, *arguments[1:], "--json")
    assert (done.code, done.err) == (code, "")
    assert done.out.count(b"\n") == 1
    said = {"text"} if name == "nan-later" else set()
    assert set(done.document) == {"schema", "error"} | said, "what was said before is kept"
    assert done.document["schema"] == 1
    assert set(done.document["error"]) == {"code", "message", "hint"}
    assert done.document["error"]["code"] == CODES[code]
    assert done.document["error"]["message"]


@pytest.mark.parametrize("module", ["ctypes", "click"])
def test_ctrl_c_while_it_starts_is_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    done = localspec("list", env={"PYTHONPATH": path})
    assert (done.code, done.out, done.err) == (130, b"", "")


def test_a_bug_of_ours_is_one_line_too(files: Files, tmp_path: Path) -> None:
    """The catch-all: a module that breaks, here a catalogue reader."""
    broken = tmp_path / "yaml.py"
    broken.write_text("raise ZeroDivisionError('oh')\n")
    env: dict[str, Any] = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    done = localspec("run", "demo", *ASK, env=env)
    assert done.code == 1
    assert "Internal error: ZeroDivisionError: oh" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in localspec("run", "demo", *ASK, env=env | {"LOCALSPEC_DEBUG": "1"}).err


def test_a_bug_in_a_thread_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Of `worker`, say: whatever is raised there, no traceback is printed."""
    before = threading.excepthook
    try:
        with pytest.raises(SystemExit):
            cli.main(["version"])
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    err = capfd.readouterr().err
    assert "Internal error: ZeroDivisionError" in err and "Traceback" not in err
