"""Whatever is wrong, a person gets one clear line, a next step and the right exit code."""

import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from localspec import cli, command_table, extras
from localspec.command_table import CommandRow
from localspec.config.options import EXTRA_LOAD_OPTIONS
from localspec.errors import UsageError
from localspec.paths import package_data_dir
from tests.support.long_cases import often
from tests.support.run_command import ROOT, Done, command, finish, harmful, localspec
from tests.support.zoo import HELLO_TEXT, Zoo

USAGE = 2
NOT_FOUND = 3
INCOMPATIBLE = 5
STORAGE = 8
OFFLINE = 10
ENGINE = 9
MODEL_FILE = 12
TOO_LONG = 13
ASK = ("-p", "a", "--max-tokens", "5", "--temperature", "0")
DEMO = package_data_dir() / "demo"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
POSIX = pytest.mark.skipif(
    sys.platform == "win32", reason="POSIX limits, names and devices"
)

Files = Callable[[str], str]


@pytest.fixture(scope="module")
def files(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Paths for words in braces.

    A name that ends in `.gguf` is a file that is no model; other names are the zoo's.
    """
    folder = tmp_path_factory.mktemp("files")
    whole = (DEMO / "demo-draft.gguf").read_bytes()
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

    def path(word: str) -> str:
        if not word.startswith("{"):
            return word
        name = word.strip("{}")
        if name.endswith(".gguf"):
            return str(folder / name)
        return str(zoo[name])

    return path


def told(done: Done, code: int, words: str, *, next_step: bool = True) -> None:
    """One line and the next step, on stderr alone."""
    assert done.code == code, done.err
    first, *rest = done.err.splitlines()
    assert first.startswith("localspec: ")
    assert words in first
    if next_step:
        assert len(rest) == 1
    assert all(line.startswith("  ") and len(line) > 8 for line in rest)
    assert "Traceback" not in done.err and "This is a bug" not in done.err
    assert not harmful(done.err.encode())


REFUSED: tuple[tuple[str, int, str], ...] = (
    # files that are no models
    ("run {absent.gguf} ASK", NOT_FOUND, "There is no file"),
    ("run {empty.gguf} ASK", MODEL_FILE, "is empty"),
    ("run {pointer.gguf} ASK", MODEL_FILE, "git lfs pull"),
    ("run {\x1b]0;owned\x07rude.gguf} ASK", MODEL_FILE, "rude.gguf is a text file"),
    ("run {cut-half.gguf} ASK", MODEL_FILE, "is incomplete"),
    ("run {future} ASK", MODEL_FILE, "unknown model architecture: 'llama99'"),
    ("run {fifo.gguf} ASK", MODEL_FILE, "not a regular file"),
    ("run demo --draft {cut-half.gguf} ASK", MODEL_FILE, "cut"),
    # pairs and names
    (
        "run {f32} --draft {renamed-rudely} ASK",
        INCOMPATIBLE,
        "token 256 is 'rude' in the draft and '<0xFD>' in the target",
    ),
    # settings
    (
        "run demo ASK --ctx 2147483648",
        USAGE,
        "A context of 2,147,483,648 tokens is out of range",
    ),
    ("run demo ASK --spec magic", USAGE, "--spec"),
    ("run demo ASK --spec eagle3 --draft none", USAGE, "'eagle3' needs a draft model"),
    ("run demo ASK --kv q8_0 --flash-attn off", USAGE, "requires flash_attn"),
    ("run demo ASK --gpu-layers many", USAGE, "number of layers"),
    # on the way
    ("run demo -p ''", USAGE, "The prompt is empty"),
    ("run demo", USAGE, "The prompt is empty"),
    ("run demo ASK --events absent/events.jsonl", STORAGE, ""),
    ("run {nan} --draft {nan} ASK --temperature 1", ENGINE, "invalid numbers"),
)


def words_of(line: str, files: Files) -> list[str]:
    """A command line; ASK stands for a short question."""
    words = shlex.split(line.replace("ASK", " ".join(ASK)))
    return [files(word) for word in words]


@pytest.mark.parametrize(
    ("line", "code", "words"), REFUSED, ids=lambda value: repr(value)[:40]
)
def test_what_is_refused(
    files: Files, line: str, code: int, words: str, tmp_path: Path
) -> None:
    if "fifo" in line and sys.platform == "win32":
        pytest.skip("no FIFO there")
    done = localspec(*words_of(line, files), cwd=tmp_path)
    told(done, code, words, next_step="--events" not in line)
    assert done.out == b""


def test_a_next_step_is_named() -> None:
    """The nearest word if it is near, else the help that has the option."""
    for line, words, hint in [
        ("rnu demo", "rnu", "Did you mean run?"),
        ("xyzzy", "xyzzy", "See: localspec --help"),
        ("history lits", "lits", "See: localspec history --help"),
        (
            "rm nothing-like-it",
            "nothing-like-it",
            "See: localspec list, localspec pair list",
        ),
        ("rm qwen3-8bb", "qwen3-8bb", "Closest: qwen3-8b"),
        (
            "fit demo --vram nan",
            "'nan' is not a finite number",
            "See: localspec fit --help",
        ),
        ("run demo --ctx", "'--ctx' requires an argument", "See: localspec run --help"),
        (
            "pair suggest --cpu",
            "'--cpu' requires an argument",
            "See: localspec pair suggest --help",
        ),
        ("--offline run demo --top-p 2", "'--top-p'", "See: localspec run --help"),
        (
            "run demo -p a --json-schema ''",
            "'--json-schema': it is empty",
            "localspec run --help",
        ),
        ("run '' -p a", "'[MODEL]': it is empty", "See: localspec run --help"),
        (
            "doctor --dismiss ''",
            "'' is not 'cpu-only-build'",
            "See: localspec doctor --help",
        ),
        (
            "fit demo --draft a,b",
            "'a,b' names more than one draft",
            "See: localspec fit --help",
        ),
        (
            "pair test demo a,b",
            "put a space between them",
            "See: localspec pair test --help",
        ),
        (
            "list --models-dir /no/such",
            "there is no folder /no/such",
            "localspec list --help",
        ),
    ]:
        done = localspec(*shlex.split(line))
        code = NOT_FOUND if line.startswith("rm") else USAGE
        told(done, code, words)
        assert hint in done.err.splitlines()[1]


def test_a_file_is_no_folder_for_data(tmp_path: Path) -> None:
    file = tmp_path / "chats.txt"
    file.touch()
    done = localspec("history", "list", "--data-dir", file)
    told(done, USAGE, f"{file} is a file")


def options_that_take_an_empty_text(row: CommandRow) -> set[str]:
    found = extras.load_object(row.path)
    group = found.commands.values() if isinstance(found, click.Group) else [found]
    accepting = set()
    for each in group:
        for option in each.params:
            if not isinstance(option, click.Option) or option.is_flag:
                continue
            name = option.name or ""
            empty: object = [""] if option.multiple else ""
            given = {name: empty}
            try:
                option.handle_parse_result(click.Context(each), given, [])
            except (click.ClickException, UsageError):
                continue
            accepting.add(name)
    return accepting


def test_no_option_takes_an_empty_text() -> None:
    """But where an empty one means something, or its use refuses it."""
    accepting: set[str] = set()
    for row in command_table.read_commands().values():
        if not row.path.startswith("localspec.extras."):
            accepting |= options_that_take_an_empty_text(row)

    accepting -= {option.name for option in EXTRA_LOAD_OPTIONS}

    assert accepting == {
        *("prompt", "system", "chat", "gpu"),
        *("events", "api_key_file", "output"),
    }


def every_command() -> Iterator[click.Command]:
    """localspec itself, each command and each subcommand."""
    context = click.Context(cli.localspec)
    yield cli.localspec
    for name in cli.localspec.list_commands(context):
        found = cli.localspec.get_command(context, name)
        assert found is not None
        yield found
        if isinstance(found, click.Group):
            yield from found.commands.values()


def test_every_command_takes_the_address_of_a_hub() -> None:
    for each in every_command():
        options = [option for param in each.params for option in param.opts]
        assert options.count("--endpoint") == 1, each.name


@pytest.mark.parametrize(
    "line",
    ["--endpoint HUB run -p a", "run --endpoint HUB -p a", "serve --endpoint HUB"],
)
def test_a_model_is_looked_for_at_the_named_hub(line: str, tmp_path: Path) -> None:
    hub = "http://127.0.0.1:9"  # Nothing listens there.
    env = {"HF_HUB_OFFLINE": "", "HF_HUB_CACHE": str(tmp_path)}

    done = localspec(*line.replace("HUB", hub).split(), "qwen3-0.6b", "-y", env=env)

    assert done.code == OFFLINE, done.err
    assert f"{hub} of --endpoint cannot be reached" in done.err


def test_an_endpoint_that_is_no_address_is_refused_by_every_command() -> None:
    told(localspec("list", "--endpoint", "hub"), USAGE, "is not a web address")


@pytest.mark.parametrize(
    ("code", "name", "line"),
    [
        (USAGE, "usage", "demo --such-an-option"),
        (NOT_FOUND, "not-found", "{absent.gguf}"),
        (
            INCOMPATIBLE,
            "incompatible-pair",
            f"{{f32}} --draft {DEMO / 'demo-eagle3.gguf'}",
        ),
        (ENGINE, "engine", "{nan-later}"),
        (TOO_LONG, "prompt-too-long", f"{{parrot}} -p {'z' * 2000}"),
    ],
)
def test_with_json_the_error_is_the_document(
    files: Files, code: int, name: str, line: str
) -> None:
    done = localspec("run", *ASK, *words_of(line, files), "--json")
    assert (done.code, done.err, done.out.count(b"\n")) == (code, "", 1)
    parts = {"schema", "error"}
    if code == ENGINE:
        parts.add("text")  # what was said before the error
    assert set(done.document) == parts
    error = done.document["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == name
    assert error["message"]


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no device that is always full"
)
def test_an_answer_that_cannot_be_written(files: Files) -> None:
    for more, reason in [
        ("--events /dev/full", "No space left"),
        (">/dev/full", "No space left"),
        (">&-", "Standard output is closed"),
        ("--json >/dev/full", "No space left"),
    ]:
        done = in_shell("exec", "run", files("{parrot}"), *ASK, after=more)
        told(done, STORAGE, reason)


@pytest.mark.parametrize("module", ["ctypes", "click"])
def test_ctrl_c_while_it_starts_is_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = localspec("list", env={"PYTHONPATH": path})
    assert (done.code, done.out, done.err) == (130, b"", "")


def test_a_bug_of_ours_is_one_line_too(tmp_path: Path) -> None:
    """The catch-all: a module that breaks, here a catalogue reader."""
    broken = tmp_path / "yaml.py"
    broken.write_text("raise ZeroDivisionError('oh')\n")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = localspec("run", "demo", *ASK, env=env)
    assert done.code == 1 and "Internal error: ZeroDivisionError: oh" in done.err
    assert "Traceback" not in done.err
    debugged = localspec("run", "demo", *ASK, env=env | {"LOCALSPEC_DEBUG": "1"})
    assert "Traceback" in debugged.err


def test_a_bug_in_a_thread_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a server, say: whatever is raised there, no traceback is printed."""
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


PARROT = ("-p", "a", "--temperature", "0", "--draft", "none")


def in_shell(
    before: str,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    after: str = "",
) -> Done:
    """The command between other words of a shell, whose limits it has."""
    words = " ".join(map(shlex.quote, map(str, command(*arguments))))
    return finish(["sh", "-c", f"{before} {words} {after}"], env=env)


def answers(done: Done) -> None:
    assert (done.code, done.text) == (0, f"{HELLO_TEXT}\n"), done.err


@POSIX
def test_few_files_may_be_open(zoo: Zoo) -> None:
    few = in_shell("ulimit -n 8; exec", "run", zoo["parrot"], *PARROT)
    told(few, ENGINE, "Too many open files")
    assert "ulimit -n" in few.err
    answers(in_shell("ulimit -n 16; exec", "run", zoo["parrot"], *PARROT))


@POSIX
@pytest.mark.parametrize("home", ["", "/dev/null"])
def test_a_home_that_is_none(home: str, zoo: Zoo) -> None:
    """An answer is not refused because there is no place to write: it needs none."""
    away = "exec env -u HOME -u LOCALSPEC_DATA_DIR -u HF_HOME"
    if home:
        away += f" HOME={home}"
    answers(in_shell(away, "run", zoo["parrot"], *PARROT))
    listed = in_shell(away, "list")
    assert listed.code == 0 and "Traceback" not in listed.err


@POSIX
def test_folders_that_take_nothing_or_may_not_be_entered(zoo: Zoo) -> None:
    """These names are refused to everyone: as root, every other folder may be entered."""
    env = {"LOCALSPEC_DATA_DIR": "/proc/nowhere"}
    answers(localspec("run", zoo["parrot"], *PARROT, env=env))
    told(localspec("history", "rm", "1", "-y", env=env), NOT_FOUND, "There is no chat")
    names = ("LOCALSPEC_DATA_DIR", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE")
    env = dict.fromkeys((*names, "XDG_CONFIG_HOME"), f"/tmp/{'a' * 300}")
    env["LOCALSPEC_CONFIG"] = os.devnull
    answers(localspec("run", zoo["parrot"], *PARROT, env=env))
    assert localspec("list", env=env).code == 0
    assert "this check failed" not in localspec("doctor", env=env).text


def test_python_without_assertions(zoo: Zoo) -> None:
    answers(localspec("run", zoo["parrot"], *PARROT, env={"PYTHONOPTIMIZE": "2"}))


@pytest.mark.parametrize(
    ("part", "code", "words"),
    [
        ("click", 1, "No module named 'click'"),
        (
            "yaml",
            1,
            "A package that localspec needs cannot be imported: No module named 'yaml'.",
        ),
        ("llama_cpp", 9, "No module named 'llama_cpp'"),
    ],
)
def test_a_part_that_is_missing(
    part: str, code: int, words: str, tmp_path: Path
) -> None:
    missing = (
        f"raise ModuleNotFoundError(\"No module named '{part}'\", name='{part}')\n"
    )
    (tmp_path / f"{part}.py").write_text(missing)
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    # a name needs the catalogue, a path does not
    done = localspec("run", "demo", *PARROT, env=env)
    told(done, code, words)
    assert "nstall" in done.err


NAMES = {
    "space": "with a space", "dash": "-p", "line": "two\nlines", "unicode": "уни漢字🙂",
    "255-bytes": "a" * 250, "no-utf-8": os.fsdecode(b"bad\xff\xfe"), "escape": "\x1b]0;owned\x07",
}  # fmt: skip


@POSIX
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
    answers(localspec("run", path, *PARROT, env=env))
    inside = localspec(
        *("run", "-p", "a", "--temperature", "0"), "--", path.name, cwd=folder
    )
    assert inside.code == 0, inside.err
    drafted = localspec("run", path, "--draft", path, "-p", "a", "--json", env=env)
    assert drafted.code == 0 and drafted.document["draft"], drafted.err
    for verb in ("show", "fit"):
        done = localspec(verb, path, env=env)
        assert done.code == 0 and not harmful(done.out), done.err
    listed = localspec("list", env=env)
    assert listed.code == 0
    assert "models folder" in listed.text
    assert not harmful(listed.out)
    assert "not verified" in listed.text, "where nobody said what it should hold"
    assert localspec("list", "--json", env=env).code == 0
    removed = localspec("rm", "-y", "--", path, env=env)
    assert removed.code == 0, removed.err
    assert not path.exists()


INVALID = os.fsdecode(b"a\xff\xed\xa0\xbd")


@POSIX
@pytest.mark.parametrize("form", [["--json"], ["--tokens", "--stats", "-v"]])
def test_bytes_that_are_no_text_in_any_argument(form: list[str], zoo: Zoo) -> None:
    """A stray byte, and half of a surrogate pair."""
    done = localspec(
        *("run", zoo["chatty"], "-p", INVALID, "--system", INVALID, "--stop", INVALID),
        *("--max-tokens", "3", *form),
    )
    assert done.code == 0, done.err
    for more in (
        ("show", INVALID),
        ("history", "search", INVALID),
        ("export", INVALID),
    ):
        assert "Traceback" not in localspec(*more).err


@POSIX
def test_a_prompt_without_end_is_not_cut_unsaid(zoo: Zoo) -> None:
    done = in_shell(f"head -c {65 * 2**20} /dev/zero |", "run", zoo["parrot"])
    told(done, USAGE, "The prompt is longer than 64 MB")
