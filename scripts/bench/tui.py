"""Speed and latency of the terminal app, in a pseudo-terminal of 120x40.

    bench.py tui [--quick] [--only speed keys scroll start idle]

speed     tokens/s that reach the terminal, in the app against `localspec run`: a scripted engine
          process at 20, 100 and 400 tokens/s, with and without guesses to draw, and the demo
          pair.  Runs alternate A B B A; the
          median of the ratios of pairs.  Budget: at least 0.97.
          Also frames per second while the app streams.  Budget: at most 25.
          And the CPU time of the app's process per second of an answer, without the engine's: what
          it takes from an engine that computes on all cores.
keys      from a typed character to its painted frame while an answer streams.  Budget: 50 ms.
scroll    from a page key to its painted frame in a transcript of 10,000 tokens.  Budget: p95 50 ms.
start     from the start of the process to the painted Home (700 ms), and `--help` (150 ms).
idle      CPU time of the app and of its engine while nothing happens, in percent of one core: on
          Home, and in a chat after an answer.  Budget: 1 % together.

It reads the pseudo-terminal and reports support for synchronized output, so every frame
has a begin and an end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import psutil
import scripted_engine
from msgspec import Struct
from pseudo_terminal import Terminal
from scripted_engine import FIRST, LAST

from localspec import cli, launch
from localspec.engine_process.client import EngineProcess
from localspec.launch import start
from localspec.launch.engine_client import EngineClient
from localspec.paths import data_dir
from localspec.protocol import wire
from localspec.protocol.events import Event, GenerationFinished, Round

HERE = str(Path(__file__).resolve())
RATES = (20, 100, 400)
LETTERS = "αβγδεζηθικλμνξοπρστυφχψω"
"""Typed letters that occur in no answer."""
PAGE_UP = b"\x1b[5~"
PAGE_DOWN = b"\x1b[6~"
F2 = b"\x1bOQ"
PROMPT = "def fibonacci(n):"


# --- the process in the terminal


def drive(how: str, rate: float, tokens: int, *, chats: bool, drafts: bool) -> None:
    """Runs the app or `run`, with the scripted engine or the demo pair."""
    vars(start)["EngineClient"] = Timed
    if rate:
        words = (str(rate), str(tokens), str(int(chats)), str(int(drafts)))
        script = [scripted_engine.__file__, *words]
        # The command that `EngineProcess` starts by default.
        EngineProcess.__init__.__defaults__ = (
            lambda: [sys.executable, "-P", *script],
            None,
        )
    if how == "run":
        greedy = ("--temperature", "0", "--max-tokens", str(tokens))
        cli.main(["run", "demo", "-p", PROMPT, *greedy])
    from localspec.chat.session import ChatSession  # noqa: PLC0415
    from localspec.tui import app  # noqa: PLC0415  not needed by `run`
    from localspec.tui.app import LocalspecApp  # noqa: PLC0415
    from localspec.tui.app_options import AppOptions  # noqa: PLC0415
    from localspec.tui.engine_runner import EngineRunner  # noqa: PLC0415
    from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415

    app.reduce_gc_pauses()
    runner = EngineRunner()
    options = AppOptions()
    session = ChatSession(launch.resolve_pair("demo", "auto"))
    session.change_settings(max_tokens=tokens)
    session.settings = session.settings.with_value("temperature", "0")
    LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options)).run()
    runner.close()


class Streamed(Struct, frozen=True):
    """How an answer came to the terminal."""

    tokens_per_second: float
    frames_per_second: float = 0.0  # 0: not counted.
    cpu_ms_per_second: float = 0.0
    """Of the app's process, from enter to the end; 0: not counted."""


class Timed(EngineClient):
    """Writes the speed of an answer to a file."""

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        first = 0.0
        last = 0.0
        n_later = 0  # Tokens after the first round.
        for event in super().generate(request):
            if isinstance(event, Round):
                last = time.perf_counter()
                if not first:
                    first = last
                else:
                    n_later += len(event.tokens)
            elif isinstance(event, GenerationFinished) and last > first:
                part = data_dir() / "part"
                part.write_text(str(n_later / (last - first)))
                part.replace(data_dir() / "rate")
            yield event


def chat(folder: str, rate: float, tokens: int, *, chats: bool = True) -> Terminal:
    words = [str(rate), str(tokens), str(int(chats)), "0"]
    return Terminal(HERE, "chat", *words, folder=folder)


def speed(folder: str, how: str, rate: float, tokens: int, *, drafts: bool) -> Streamed:
    """The rate 0 means the demo pair, whose frames are not counted."""
    written_rate = Path(folder) / "rate"
    written_rate.unlink(missing_ok=True)
    words = (str(rate), str(tokens), "1", str(int(drafts)))
    with Terminal(HERE, how, *words, folder=folder) as here:
        if how == "chat":
            here.wait_for("Type a message" if rate else "Text-completion")
            here.quiet()
            here.type(f"{PROMPT}\r")
        process = psutil.Process(here.pid)
        began = time.perf_counter()
        cpu_before = cpu_seconds(process)

        def cpu_ms_per_second() -> float:
            if how == "run":  # It may have exited.
                return 0.0
            seconds = time.perf_counter() - began
            return 1e3 * (cpu_seconds(process) - cpu_before) / seconds

        if not rate:
            here.drain(written_rate.exists)
            tokens_per_second = float(written_rate.read_text())
            return Streamed(tokens_per_second, cpu_ms_per_second=cpu_ms_per_second())
        first = here.wait_for(FIRST.strip())
        last = here.wait_for(LAST.strip())
        cpu_ms = cpu_ms_per_second()
        painted = [at for at in here.frames if first < at <= last]
        seconds = last - first
        return Streamed((tokens - 1) / seconds, len(painted) / seconds, cpu_ms)


def cpu_seconds(process: psutil.Process) -> float:
    """What all threads of a process have used, without its child processes."""
    times = process.cpu_times()
    return float(times.user + times.system)


def speeds(quick: bool, folder: str) -> None:
    n_turns = 2 if quick else 5
    seconds = 4 if quick else 10
    for drafts in (False, True):
        for rate in RATES:
            name = f"{rate} tok/s"
            if drafts:
                name += ", guesses"
            compare_speeds(name, folder, rate, rate * seconds, n_turns, drafts=drafts)
    compare_speeds("demo pair", folder, 0, 500, n_turns)


def compare_speeds(
    name: str,
    folder: str,
    rate: float,
    tokens: int,
    n_turns: int,
    *,
    drafts: bool = False,
) -> None:
    by_way: dict[str, list[Streamed]] = {"run": [], "chat": []}
    for turn in range(n_turns):
        order = ["run", "chat"]
        if turn % 2:
            order.reverse()
        for how in order:
            by_way[how].append(speed(folder, how, rate, tokens, drafts=drafts))
    app = [each.tokens_per_second for each in by_way["chat"]]
    run = [each.tokens_per_second for each in by_way["run"]]
    ratios = [ours / theirs for ours, theirs in zip(app, run, strict=True)]
    cpu_ms = median(each.cpu_ms_per_second for each in by_way["chat"])
    line = (
        f"speed   {name:>18}: app {median(app):6.1f}"
        f"  run {median(run):6.1f}"
        f"  ratio {median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        f"  CPU {cpu_ms:3.0f} ms/s"
    )
    frames = [each.frames_per_second for each in by_way["chat"]]
    if any(frames):
        line += f"   {max(frames):4.1f} frames/s at most"
    print(line, flush=True)


def keys(quick: bool, folder: str) -> None:
    letters = LETTERS if quick else LETTERS * 4
    for rate in (100, 400):
        for view in ("colours", "no colours"):
            with chat(folder, rate, 100_000) as here:
                here.wait_for("Type a message")
                here.quiet()
                here.type("a\r")
                here.wait_for(FIRST.strip())
                if view == "no colours":
                    here.type(F2)
                found = [typed(here, letter) for letter in letters]
                show(f"keys    {rate} tok/s, {view}", found)


def typed(here: Terminal, letter: str) -> float:
    """Milliseconds from the key to the painted letter."""
    pause = time.perf_counter() + 0.13
    here.drain(lambda: time.perf_counter() > pause)
    since = len(here.seen)
    began = here.type(letter)
    came = here.wait_for(letter, since)
    here.type(b"\x7f")
    return (came - began) * 1e3


def scroll(quick: bool, folder: str) -> None:
    total = 2_000 if quick else 10_000
    with chat(folder, 5000, total // 5, chats=True) as here:
        here.wait_for("Type a message")
        scroll_transcript("Markdown", here, n_turns=5, total=total)
    with chat(folder, 5000, total, chats=False) as here:
        here.wait_for("Text-completion")
        scroll_transcript("raw", here, n_turns=1, total=total)


def scroll_transcript(name: str, here: Terminal, n_turns: int, total: int) -> None:
    here.quiet()
    for _ in range(n_turns):
        since = len(here.seen)
        here.type("a\r")
        here.wait_for(LAST.strip(), since)
        here.quiet()
    show(f"scroll  {name}, {total:,} tokens", pages(here))
    here.type(F2)
    here.quiet()
    show(f"scroll  {name}, without colours", pages(here))


def pages(here: Terminal) -> list[float]:
    """Latencies of up to 60 pages up, and down again."""
    found = []
    for key in (PAGE_UP, PAGE_DOWN):
        for _ in range(60):
            took = here.frame_after(key)
            if took is None:  # at the end
                break
            found.append(took)
            here.quiet(0.05)
    return found


def begin(quick: bool, folder: str) -> None:
    n_starts = 3 if quick else 15
    for name, words, text in (
        ("Home", ("-m", "localspec"), "Ready to run"),
        ("--help", ("-m", "localspec", "--help"), "Commands"),
    ):
        found = []
        for _ in range(n_starts):
            with Terminal(*words, folder=folder) as here:
                found.append((here.wait_for(text) - here.began) * 1e3)
        show(f"start   {name}", found)


def idle(quick: bool, folder: str) -> None:
    settle = 5 if quick else 20
    seconds = 5 if quick else 60
    with Terminal("-m", "localspec", folder=folder) as here:
        here.wait_for("Ready to run")
        cpu_share("Home", here, settle, seconds)
    answered = Path(folder) / "rate"
    answered.unlink(missing_ok=True)
    with chat(folder, 0, 100) as here:
        here.wait_for("Text-completion")
        here.quiet()
        here.type(f"{PROMPT}\r")
        here.drain(answered.exists)
        cpu_share("a chat after an answer", here, settle, seconds)


def cpu_share(name: str, here: Terminal, settle: float, seconds: float) -> None:
    """Print the CPU time of the app and of its child processes, once settled."""
    app = psutil.Process(here.pid)

    def engine_seconds() -> float:
        return sum(cpu_seconds(child) for child in app.children(recursive=True))

    def wait(duration: float) -> float:
        end = time.perf_counter() + duration
        return here.drain(lambda: time.perf_counter() >= end)

    began = wait(settle)
    app_before = cpu_seconds(app)
    engine_before = engine_seconds()
    frames_before = len(here.frames)
    took = wait(seconds) - began
    app_percent = 100 * (cpu_seconds(app) - app_before) / took
    engine_percent = 100 * (engine_seconds() - engine_before) / took
    painted = len(here.frames) - frames_before
    print(
        f"idle    {name}: app {app_percent:.2f} %, engine {engine_percent:.2f} %"
        f" of one core in {took:.0f} s, {painted} frames",
        flush=True,
    )


def show(name: str, found: list[float]) -> None:
    p95 = quantiles(found, n=20)[-1]
    print(
        f"{name}: median {median(found):.0f} ms, p95 {p95:.0f} ms, "
        f"longest {max(found):.0f} ms ({len(found)})",
        flush=True,
    )


PARTS = {"speed": speeds, "keys": keys, "scroll": scroll, "start": begin, "idle": idle}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="few runs, as a smoke test"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "welcomed").touch()  # no first-run screen
        for name in args.only:
            PARTS[name](args.quick, folder)


if __name__ == "__main__":
    drive(
        sys.argv[1],
        float(sys.argv[2]),
        int(sys.argv[3]),
        chats=sys.argv[4] == "1",
        drafts=sys.argv[5] == "1",
    )
