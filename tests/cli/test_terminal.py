"""What reaches a terminal or a pipe: marks, colours, signals, and nothing that attacks."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.cli import report_printer, terminal
from localspec.report.token_classes import TOKEN_CLASSES
from tests.support import run_command
from tests.support.downloads import wait_for
from tests.support.zoo import HELLO_TEXT, HOSTILE, Zoo

GREEDY = ("--temperature", "0")
POSIX = pytest.mark.skipif(
    sys.platform == "win32", reason="needs POSIX signals and terminals"
)

FORCED = {"FORCE_COLOR": "1"}


@pytest.mark.parametrize(
    ("is_terminal", "env", "options", "coloured"),
    [
        (False, {}, (), False),
        (False, FORCED, (), True),
        (False, FORCED | {"NO_COLOR": "1"}, (), False),
        (False, FORCED, ("--no-color",), False),
        (True, {}, (), True),
        (True, {"NO_COLOR": "1"}, (), False),
        (True, {}, ("--no-color",), False),
    ],
)
def test_colour(
    zoo: Zoo,
    is_terminal: bool,
    env: dict[str, str],
    options: tuple[str, ...],
    coloured: bool,
) -> None:
    """And nothing hostile, on a terminal or in a pipe."""
    if is_terminal and sys.platform == "win32":
        pytest.skip("pseudo-terminals")
    more = (
        "-p",
        "a",
        *GREEDY,
        "--tokens",
        "--stats",
        "-v",
        "--spec",
        "model",
        *options,
    )
    path = zoo["hostile"]
    if is_terminal:
        code, seen = run_command.on_a_terminal(
            "run", path, "--draft", path, *more, env=env
        )
        seen = run_command.without_load_progress(seen)
    else:
        done = run_command.localspec("run", path, "--draft", path, *more, env=env)
        code = done.code
        seen = done.out
        assert not run_command.harmful(done.err.encode(), colour=True)
    assert (
        code == 0
        and b"one" in seen
        and b"two" in seen
        and (b"\x1b[" in seen) is coloured
    )
    assert not run_command.harmful(seen, colour=True)


def test_every_token_is_marked_with_its_class(zoo: Zoo) -> None:
    done = run_command.hello(zoo, "--tokens", "--spec", "model")
    mark = {name: look.mark for name, look in TOKEN_CLASSES.items()}
    assert done.text.startswith(
        f" Hello{mark['plain']},{mark['accepted']} wor{mark['accepted']}"
    )
    bare = done.text
    for glyph in mark.values():
        bare = bare.replace(glyph, "")
    assert (
        bare == HELLO_TEXT + "\n"
        and mark["bonus"] in done.text
        and "guessed right" in done.err
    )


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_a_terminal_that_knows_no_unicode(zoo: Zoo, env: dict[str, str]) -> None:
    done = run_command.hello(zoo, "--tokens", "--stats", "--spec", "model", env=env)
    assert done.code == 0 and "Hello" in done.text and "Traceback" not in done.err
    if "PYTHONIOENCODING" in env:
        assert done.out.isascii() and "Hello-,~" in done.text


@POSIX
def test_a_reader_that_leaves_is_no_error(zoo: Zoo) -> None:
    """The command is `localspec run … | head -c 8`."""
    with subprocess.Popen(
        run_command.command(
            "run", zoo["chatter"], "-p", "a", *GREEDY, "--max-tokens", "1000000"
        ),
        env=run_command.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(8) == b" one two"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(run_command.TIMEOUT)) == (b"", 141)


@POSIX
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_interrupt_keeps_what_was_said(
    zoo: Zoo, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Once the answer is under way, which the file of events shows."""
    events = tmp_path / "events.jsonl"
    endless = ("run", zoo["chatter"], "-p", "a", *GREEDY, "--max-tokens", "1000000")
    with subprocess.Popen(
        run_command.command(*endless, "--events", events, *form),
        env=run_command.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_for(
            lambda: events.exists() and events.read_bytes().count(b'"round"') > 8,
            run_command.TIMEOUT,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=run_command.TIMEOUT)
    assert process.returncode == 130 and b"Traceback" not in err
    if form:
        document = json.loads(out)
        assert document["text"].startswith(" one two three")
        assert document["finish_reason"] == "cancelled"
    else:
        assert out.decode().startswith(" one two three")
        assert out.endswith(b"\n")


def test_nothing_hostile_is_held_back_to_the_end(zoo: Zoo) -> None:
    """What might become a stop text comes last, on another way."""
    stop = ("--stop", f"{HOSTILE[1]}X", "--max-tokens", "2", "--tokens")
    done = run_command.localspec("run", zoo["hostile"], "-p", "a", *GREEDY, *stop)
    assert done.code == 0
    assert done.text.split("·")[0] == " one"
    assert not run_command.harmful(done.out)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_writer_takes_away_what_harms(
    capfd: pytest.CaptureFixture[str], text: str
) -> None:
    terminal.echo(f"a {text} b\nc")
    terminal.echo(text, err=True)
    terminal.notify(text, text)
    terminal.echo_text(f"{text}\n{text}")
    report_printer.echo_columns([(text, "x"), ("y", text)])
    terminal.echo_json({"text": text})
    terminal.ProgressLine(quiet=False, interval=0).show(text, is_step=True)
    out, err = capfd.readouterr()
    assert not run_command.harmful(out.encode())
    assert not run_command.harmful(err.encode())
    assert out.startswith("a ") and out.index("c") < out.index("\n"), "one line"


def test_every_line_of_a_command_passes_the_writer() -> None:
    """Two files print by themselves.

    One prints an answer's text, which is sanitized token by token; the other prints
    numbers of requests.
    """
    allowed = {"answer_printer.py": {"sys.stdout.write"}, "serve.py": {"print"}}
    for path in (run_command.ROOT / "localspec" / "cli").glob("*.py"):
        calls = {
            ast.unparse(n.func)
            for n in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(n, ast.Call)
        }
        sinks = calls & {
            "print",
            "click.echo",
            "click.secho",
            "sys.stdout.write",
            "sys.stderr.write",
        }
        assert path.name == "terminal.py" or sinks <= allowed.get(path.name, set()), (
            path
        )
