"""Compares this checkout with another commit's: documents, texts, chats, start, speed.

    git worktree add /tmp/before COMMIT
    bench.py commits /tmp/before [--only documents texts chats start speed] [--quick]

documents  the JSON and the text of every command that can run offline.
texts      greedy and seeded answers of the models that are on this computer.
chats      the saved chats of a scripted linear chat, row by row.
start      `--help`, the app's first screen, and `run -p` of one token: ratio new to old.
speed      tokens/s of plain decoding and of `auto`: ratio new to old.

What differs between two runs of the old commit (a time, free memory) is not compared.
Start and speed are measured in turns, old new new old, with nothing else running; the
median of the ratios counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from pseudo_terminal import Terminal

HERE = Path(__file__).resolve().parents[2]
SECTIONS = ("documents", "texts", "chats", "start", "speed")
TIME_LIMIT = 600.0
"""Seconds for one command."""

GPUS = ("RTX 3060", "RTX 4090", "RX 7900 XTX", "M4 Pro", "Arc B580")
MODELS = ("qwen3-8b", "gemma-4-31b", "gpt-oss-20b", "qwen3.5-9b+mtp")
INSTALLED_PAIRS = ("smollm2-135m+eagle3", "demo", "demo+eagle3", "demo+dspark")

Leaves = Mapping[str, Any]
"""Values of a JSON document by their paths, such as `pairs[3].verdict`."""


class Checkout(Struct, frozen=True):
    """A commit's files, run with a data folder that both commits call by one name."""

    root: Path
    data: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.root),
            "LOCALSPEC_DATA_DIR": str(self.data),
            "LOCALSPEC_CONFIG": str(self.data / "config.toml"),
            "HF_HUB_OFFLINE": "1",
            "GGML_NO_BACKTRACE": "1",
            "COLUMNS": "100",
            # Else which file answers depends on a measurement of this CPU.
            "LOCALSPEC_STARTER_TYPE": "own",
        }

    def run(self, words: Sequence[str]) -> str:
        """What the command prints, and its exit code.

        The checkout's path is replaced.
        """
        done = subprocess.run(
            [sys.executable, "-P", "-m", "localspec", *words],
            stdin=subprocess.DEVNULL,
            cwd=self.data,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        printed = done.stdout + f"\nexit code {done.returncode}\n"
        if done.returncode:
            printed += done.stderr
        return printed.replace(str(self.root), "CHECKOUT")

    def forget_everything(self) -> None:
        """Empty the data folder, so that each command starts from the same state."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)


class Comparison:
    """Compares what the old and the new checkout print, and counts the differences."""

    def __init__(self, old: Checkout, new: Checkout) -> None:
        self._old = old
        self._new = new
        self.n_equal = 0
        self.n_different = 0

    def compare(self, name: str, read: Callable[[Checkout], Leaves]) -> None:
        """`read` runs twice on the old checkout, to learn which values vary."""
        first = self._read(self._old, read)
        new = self._read(self._new, read)
        second = self._read(self._old, read)

        different = []
        for path in sorted({*first, *new}):
            varies = first.get(path) != second.get(path)
            if not varies and first.get(path) != new.get(path):
                different.append(path)

        if not different:
            self.n_equal += 1
            print(f"equal      {name}: {len(new)} values", flush=True)
            return
        self.n_different += 1
        print(f"DIFFERENT  {name}: {len(different)} of {len(new)} values", flush=True)
        for path in different[:20]:
            print(f"    {path}\n      old {first.get(path, '(absent)')!r}")
            print(f"      new {new.get(path, '(absent)')!r}", flush=True)

    def _read(self, checkout: Checkout, read: Callable[[Checkout], Leaves]) -> Leaves:
        checkout.forget_everything()
        return read(checkout)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON value, by path.

    `{"a": [1, {"b": 2}]}` has the leaves `.a[0]` = 1 and `.a[1].b` = 2.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield from flatten(item, f"{path}.{name}")
    elif isinstance(value, list):
        yield f"{path}.length", len(value)
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}[{index}]")
    else:
        yield path, value


def read_output(printed: str) -> Leaves:
    """The values of a JSON document, or the lines of a text."""
    document, _, exit_code = printed.rpartition("\nexit code ")
    try:
        leaves = dict(flatten(json.loads(document)))
    except ValueError:
        lines = document.splitlines()
        leaves = {f"line {number}": line for number, line in enumerate(lines, 1)}
    return leaves | {"exit code": exit_code}


# --- documents


def list_document_commands() -> Iterator[tuple[str, ...]]:
    yield ("--help",)
    commands = "run serve bench verify pull list show rm search convert make-draft"
    for command in f"{commands} worker fit export doctor replay".split():
        yield (command, "--help")
    for name in ("pair", "history", "config"):
        yield (name, "--help")
    yield ("list", "--json")
    yield ("list",)
    yield ("config", "list", "--json")
    yield ("history", "list", "--json")
    yield ("pair", "list", "--json")
    yield ("pair", "list")
    for pair in INSTALLED_PAIRS:
        yield ("show", pair, "--json")
        yield ("show", pair)
        yield ("fit", pair, "--json")
    for model in MODELS:
        yield ("show", model, "--json")
        yield ("pair", "suggest", model, "--gpu", "RTX 4090", "--json")
        for gpu in GPUS:
            yield ("fit", model, "--gpu", gpu, "--json")
            yield ("fit", model, "--gpu", gpu)
    for gpu in GPUS:
        yield ("pair", "suggest", "--gpu", gpu, "--json")
        yield ("pair", "suggest", "--gpu", gpu)
    yield ("pair", "check", "smollm2-135m", "demo", "--json")
    yield ("search", "anything", "--json")
    yield ("fit", "no-such-model", "--json")
    yield ("doctor",)


def compare_documents(comparison: Comparison) -> None:
    for words in list_document_commands():
        comparison.compare(
            " ".join(words),
            lambda checkout, words=words: read_output(checkout.run(words)),  # type: ignore[misc]
        )


# --- texts and chats

PROMPTS = ("Write three sentences about a lighthouse.", "def fibonacci(n):")
SAMPLINGS = (
    ("--temperature", "0"),
    ("--temperature", "0.9", "--seed", "7"),
)


def compare_texts(comparison: Comparison, models: Sequence[str]) -> None:
    for model in (*INSTALLED_PAIRS, *models):
        for prompt in PROMPTS:
            for sampling in SAMPLINGS:
                for spec in ("off", "lookup", "auto"):
                    words = ("run", model, "-p", prompt, "--max-tokens", "48")
                    options = (*sampling, "--spec", spec, "--json")
                    comparison.compare(
                        f"{model} {' '.join(options[:-1])}: {prompt[:12]}…",
                        lambda checkout, words=words + options: read_answer(  # type: ignore[misc]
                            checkout, words
                        ),
                    )


def read_answer(checkout: Checkout, words: Sequence[str]) -> Leaves:
    """The text, its token ids, and why the answer ended."""
    document, _, exit_code = checkout.run(words).rpartition("\nexit code ")
    answer = json.loads(document)
    tokens = [token["id"] for token in answer.get("tokens", ())]
    return {
        "text": answer.get("text"),
        "tokens": tokens,
        "reason": answer.get("finish_reason"),
        "exit code": exit_code,
    }


CHAT = (
    "Hello, who are you?",
    "/rename A first chat",
    "Name two colours.",
    "/retry",
    "/stats",
    "/exit",
)
"""Typed line by line, each when the chat asks for the next message."""


def compare_chats(comparison: Comparison) -> None:
    words = ("--plain", "run", "smollm2-135m", "--spec", "off", "--seed", "5")
    for temperature in ("0", "0.8"):
        comparison.compare(
            f"a saved chat at temperature {temperature}",
            lambda checkout, words=(*words, "--temperature", temperature): read_chats(
                checkout, words
            ),  # type: ignore[misc]
        )


def read_chats(checkout: Checkout, words: Sequence[str]) -> Leaves:
    """Every row of the database that a scripted chat leaves."""
    os.environ.update(checkout.environment)
    with Terminal("-P", "-m", "localspec", *words, folder=str(checkout.data)) as screen:
        for number, line in enumerate(CHAT, 1):
            screen.drain(lambda: screen.seen.count(b"You: ") >= number)  # noqa: B023
            screen.type(f"{line}\r")
        screen.has_ended()
    leaves: dict[str, Any] = {}
    file = checkout.data / "chats" / "chats.sqlite"
    with sqlite3.connect(file) as database:
        tables = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        for name, sql in tables:
            leaves[f"{name}.sql"] = sql
            rows = database.execute(f'SELECT * FROM "{name}"').fetchall()
            for index, row in enumerate(rows):
                for column, value in enumerate(row):
                    leaves[f"{name}[{index}][{column}]"] = repr(value)
    return leaves


# --- start and speed


def compare_starts(old: Checkout, new: Checkout, repeats: int) -> None:
    def time_command(checkout: Checkout, words: Sequence[str]) -> float:
        began = time.perf_counter()
        checkout.run(words)
        return time.perf_counter() - began

    one_token = ("run", "smollm2-135m", "--spec", "off", "-p", "Hi", "--max-tokens")
    commands: dict[str, Callable[[Checkout], float]] = {
        "--help": lambda checkout: time_command(checkout, ("--help",)),
        "run -p, one token": lambda checkout: time_command(checkout, (*one_token, "1")),
        "the app": time_app,
    }
    for name, measure in commands.items():
        report_ratio(f"start of {name}", "s", old, new, measure, repeats)


def time_app(checkout: Checkout) -> float:
    """Seconds from the start of the process to the painted first screen."""
    os.environ.update(checkout.environment)
    with Terminal("-P", "-m", "localspec", folder=str(checkout.data)) as screen:
        return screen.wait_for("SmolLM2") - screen.began


def compare_speeds(old: Checkout, new: Checkout, repeats: int) -> None:
    pairs = (
        ("smollm2-135m", "off"),
        ("smollm2-135m+eagle3", "auto"),
        ("demo", "off"),
        ("demo", "auto"),
    )
    for pair, spec in pairs:
        words = ("run", pair, "--spec", spec, "--temperature", "0", "--max-tokens")
        prompt = ("256", "-p", "def fibonacci(n):", "--json")

        def measure(checkout: Checkout, words: Sequence[str] = words + prompt) -> float:
            document = checkout.run(words).rpartition("\nexit code ")[0]
            return float(json.loads(document)["timings"]["tokens_per_second"])

        report_ratio(f"speed of {pair}, {spec}", "tok/s", old, new, measure, repeats)


def report_ratio(
    name: str,
    unit: str,
    old: Checkout,
    new: Checkout,
    measure: Callable[[Checkout], float],
    repeats: int,
) -> None:
    """Measures in turns, so that a slow minute of the computer meets both."""
    for checkout in (old, new):
        checkout.forget_everything()
        measure(checkout)  # files are in the page cache, bytecode is compiled
    olds: list[float] = []
    news: list[float] = []
    for turn in range(repeats):
        if turn % 2:
            news.append(measure(new))
            olds.append(measure(old))
        else:
            olds.append(measure(old))
            news.append(measure(new))
    ratios = [after / before for before, after in zip(olds, news, strict=True)]
    print(
        f"{name}: old {median(olds):.3f} {unit}, new {median(news):.3f} {unit}, "
        f"ratio {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="a checkout of the other commit")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--model", nargs="*", default=(), help="also answer with these")
    parser.add_argument("--quick", action="store_true", help="fewer turns")


def main(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        data = Path(folder) / "data"
        old = Checkout(args.old.resolve(), data)
        new = Checkout(HERE, data)
        comparison = Comparison(old, new)
        if "documents" in args.only:
            compare_documents(comparison)
        if "texts" in args.only:
            compare_texts(comparison, args.model)
        if "chats" in args.only:
            compare_chats(comparison)
        repeats = 3 if args.quick else 9
        if "start" in args.only:
            compare_starts(old, new, repeats)
        if "speed" in args.only:
            compare_speeds(old, new, repeats)
    if comparison.n_equal or comparison.n_different:
        print(f"{comparison.n_equal} equal, {comparison.n_different} different")
    return 1 if comparison.n_different else 0
