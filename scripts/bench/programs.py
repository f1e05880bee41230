"""Runs the compared programs, llama.cpp's and localspec, and parses their output."""

from __future__ import annotations

import http.client
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from localspec.bench.results import distinct_4grams
from localspec.chat.answer import GeneratedAnswer
from localspec.engine.session import Session
from localspec.engine_process.client import EngineProcess
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.protocol.wire import (
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
)

LIMIT_S = 1800
_IDLE_S = 1.0  # A program is idle if it computes for less than a tenth of that time.
# llama.cpp logs in a thread of its own; about one exit in thirty truncates the log.
TRIES = 5
# The sampling of every program at temperatures above 0.
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05
MIN_TOKENS = 8  # A shorter answer says nothing of speed.

_ENCODED = re.compile(r"encoded +\d+ tokens in +([\d.]+) seconds")
_DECODED = re.compile(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s")
_DRAFTED = re.compile(r"n_drafted += (\d+)")
_ACCEPTED = re.compile(r"n_accept += (\d+)")


class BenchError(Exception):
    """A program failed, or cannot be measured."""


class ShortAnswerError(BenchError):
    """An answer of fewer than MIN_TOKENS."""


def require_length(tokens: int) -> None:
    if tokens < MIN_TOKENS:
        raise ShortAnswerError(f"The answer has {tokens} tokens.")


def conditions() -> str:
    """The machine and the versions, for the head of a report."""
    load = "unknown"
    if hasattr(os, "getloadavg"):
        load = f"{os.getloadavg()[0]:.2f}"
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, "
        f"load now {load}, llama-cpp-python {version('llama-cpp-python')}, "
        f"Python {platform.python_version()}"
    )


class Settings(Struct, frozen=True):
    """Settings for all programs; None leaves each program its own default."""

    target: str
    draft: str | None
    folder: str  # Of llama.cpp's programs.
    tokens: int
    ctx: int
    threads: int | None = None
    gpu_layers: int | None = None
    llama_cpp_options: tuple[str, ...] = ()
    localspec_options: tuple[str, ...] = ()
    data_dir: str | None = None  # localspec's measurements; None: the user's own.

    def program(self, name: str) -> str:
        return shutil.which(name, path=self.folder) or os.path.join(self.folder, name)

    def has_program(self, name: str) -> bool:
        return os.path.exists(self.program(name))


class Case(Struct, frozen=True):
    name: str
    prompt: str
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One answer of one program."""

    speed: float  # Tokens per second after the first token.
    tokens: int
    answer_s: float  # Reading the prompt and decoding `Settings.tokens` tokens.
    drafted: int = 0
    accepted: int = 0
    text: str = ""
    # The share of distinct 4-grams of localspec's answers.
    distinct: float | None = None


def environment(settings: Settings) -> dict[str, str]:
    found = dict(os.environ)
    for name in os.environ:
        if name.startswith("LLAMA_ARG_"):  # llama.cpp's programs take flags from it.
            del found[name]
    if settings.data_dir is not None:
        found["LOCALSPEC_DATA_DIR"] = settings.data_dir
        found["LOCALSPEC_CONFIG"] = os.path.join(settings.data_dir, "none.toml")
    return found


def call(settings: Settings, command: Sequence[str]) -> tuple[str, str]:
    """Runs a program; returns stdout and stderr. Raises BenchError."""
    env = environment(settings)
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LIMIT_S, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{command[0]}: {error}") from error
    out = done.stdout.decode("utf-8", "replace")
    err = done.stderr.decode("utf-8", "replace")
    if done.returncode != 0:
        cause = last_lines(err or out)
        raise BenchError(f"{command[0]} exited with {done.returncode}:\n{cause}")
    return out, err


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])


# --- llama.cpp


def model_options(settings: Settings) -> list[str]:
    """What llama-server and llama-speculative-simple have in common."""
    options = ["-m", settings.target, "-c", str(settings.ctx)]
    numbers = {
        "-t": settings.threads,
        "-tb": settings.threads,
        "-ngl": settings.gpu_layers,
    }
    if settings.draft is not None:
        options += ["--spec-type", f"draft-{drafting(settings)}"]
        if settings.draft != settings.target:
            options += ["-md", settings.draft]
        numbers |= {f"{name}d": number for name, number in numbers.items()}
    return options + option_words(numbers)


def option_words(numbers: Mapping[str, int | None]) -> list[str]:
    """Options as words, without those that are None."""
    words = []
    for name, number in numbers.items():
        if number is not None:
            words += [name, str(number)]
    return words


@cache
def drafting(settings: Settings) -> str:
    """llama.cpp's name of the draft kind; a target that is its own draft is MTP."""
    if settings.draft is None or settings.draft == settings.target:
        return "mtp"
    kind = draft_heads.file_draft_kind(reader.read(Path(settings.draft)))
    if kind == "model":
        return "simple"
    return kind


def llama_server_command(settings: Settings) -> list[str]:
    program = settings.program("llama-server")
    return [program, *model_options(settings), *settings.llama_cpp_options]


def localspec_server_command(settings: Settings) -> list[str]:
    """`localspec serve` without a draft."""
    options = (*PLAIN, *model_settings(settings), *settings.localspec_options)
    return [*LOCALSPEC, "serve", settings.target, *options]


class LlamaServer:
    """A server with llama.cpp's API.

    It is started for the first answer, and runs until it is closed.
    """

    def __init__(
        self,
        settings: Settings,
        command: Callable[[Settings], list[str]] = llama_server_command,
    ) -> None:
        self._settings = settings
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the server
        self._port = 0

    def complete(self, case: Case) -> Run:
        began = time.perf_counter()
        answer = self.post("/completion", self._request(case, self._settings.tokens))
        total_s = time.perf_counter() - began
        timings = answer["timings"]
        require_length(timings["predicted_n"])
        # The first token comes with the prompt's pass, as in localspec's
        # tokens_per_second.
        speed = (timings["predicted_n"] - 1) / (timings["predicted_ms"] / 1e3)
        prompt_s = total_s - timings["predicted_ms"] / 1e3
        return Run(
            speed=speed,
            tokens=timings["predicted_n"],
            answer_s=prompt_s + (self._settings.tokens - 1) / speed,
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
            text=answer["content"],
        )

    def prefill(self, prompt: str) -> float:
        """Tokens per second."""
        body = self._request(Case("", prompt), tokens=1) | {"max_tokens": 1}
        timings = self.post("/v1/completions", body)["timings"]
        return float(timings["prompt_n"] / timings["prompt_ms"] * 1e3)

    def cut(self, text: str, tokens: int) -> str:
        """The beginning of a text that has this many tokens, or nearly."""
        ids = self.post("/tokenize", {"content": text})["tokens"][:tokens]
        return str(self.post("/detokenize", {"tokens": ids})["content"])

    def _request(self, case: Case, tokens: int) -> dict[str, Any]:
        return {
            "prompt": case.prompt,
            "seed": case.seed,
            "temperature": case.temperature,
            "top_k": TOP_K,
            "top_p": TOP_P,
            "min_p": MIN_P,
            "n_predict": tokens,
            "cache_prompt": False,
        }

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        status, content = self._ask("POST", path, json.dumps(body))
        if status != http.client.OK:
            raise BenchError(f"the server: {content[:300]}")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        address = ("--host", "127.0.0.1", "--port", str(self._port))
        command = [*self._command(self._settings), *address]
        env = environment(self._settings)
        try:
            self._process = subprocess.Popen(
                command, stdout=self._log, stderr=self._log, env=env
            )
        except OSError as error:
            raise BenchError(f"{command[0]}: {error}") from error
        limit = time.monotonic() + LIMIT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > limit:
                self._log.seek(0)
                log = self._log.read().decode("utf-8", "replace")
                raise BenchError(f"{command[0]} does not start:\n{last_lines(log)}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            status, _ = self._ask("GET", "/health")
        except BenchError:
            return False
        return status == http.client.OK

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=LIMIT_S
        )
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"the server: {error}") from error
        finally:
            connection.close()

    def wait_until_idle(self) -> None:
        assert self._process is not None
        program = psutil.Process(self._process.pid)
        before = -math.inf
        now = self._cpu_seconds(program)
        while now > before + _IDLE_S / 10:
            time.sleep(_IDLE_S)
            before = now
            now = self._cpu_seconds(program)

    @staticmethod
    def _cpu_seconds(program: psutil.Process) -> float:
        """CPU time of a program and of its child processes."""
        seconds = 0.0
        for process in (program, *program.children(recursive=True)):
            times = process.cpu_times()
            seconds += times.user + times.system
        return seconds

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._log.close()


def speculative_simple(settings: Settings, case: Case, gamma: int | None) -> Run:
    """With gamma None, its default draft length."""
    command = speculative_simple_command(settings, case, gamma)
    for _ in range(TRIES):
        out, log = call(settings, command)
        encoded = _ENCODED.search(log)
        decoded = _DECODED.search(log)
        drafted = _DRAFTED.search(log)
        accepted = _ACCEPTED.search(log)
        if encoded and decoded and drafted and accepted:
            require_length(int(decoded[1]))
            speed = float(decoded[2])
            _, _, text = out.partition(case.prompt.strip())
            return Run(
                speed=speed,
                tokens=int(decoded[1]),
                answer_s=float(encoded[1]) + settings.tokens / speed,
                drafted=int(drafted[1]),
                accepted=int(accepted[1]),
                text=text,
            )
    raise BenchError(
        f"{command[0]} printed no speed, {TRIES} times "
        "(at real-time priority it never does)."
    )


def speculative_simple_command(
    settings: Settings, case: Case, gamma: int | None
) -> list[str]:
    """It stops one token after -n, so -n is one less."""
    return [
        settings.program("llama-speculative-simple"),
        *model_options(settings),
        *option_words({"--spec-draft-n-max": gamma}),
        *("-p", case.prompt, "--no-escape", "-n", str(settings.tokens - 1)),
        *("--temp", str(case.temperature), "--seed", str(case.seed)),
        *("--top-k", str(TOP_K), "--top-p", str(TOP_P), "--min-p", str(MIN_P)),
        *settings.llama_cpp_options,
    ]


# --- localspec

LOCALSPEC = (sys.executable, "-m", "localspec")
PLAIN = ("--draft", "none", "--spec", "off")


def localspec(settings: Settings, case: Case, options: Sequence[str]) -> Run:
    document = localspec_answer(settings, case, options)
    timings = document["timings"]
    speculation = document["speculation"]
    ids = [token["id"] for token in document["tokens"]]
    require_length(len(ids))
    speed = timings["tokens_per_second"]
    return Run(
        speed=speed,
        tokens=len(ids),
        answer_s=timings["prefill_ms"] / 1e3 + (settings.tokens - 1) / speed,
        drafted=speculation["drafted"],
        accepted=speculation["accepted"],
        text=document["text"],
        distinct=distinct_4grams(ids),
    )


def localspec_answer(
    settings: Settings, case: Case, options: Sequence[str]
) -> dict[str, Any]:
    """The document that `localspec run --json` prints."""
    out, _ = call(settings, localspec_command(settings, case, options))
    answer: dict[str, Any] = json.loads(out)
    return answer


def localspec_command(
    settings: Settings, case: Case, options: Sequence[str]
) -> list[str]:
    command = [
        *(*LOCALSPEC, "run", settings.target, *options, "--raw", "-p", case.prompt),
        *("--temperature", str(case.temperature), "--seed", str(case.seed)),
        *("--top-k", str(TOP_K), "--top-p", str(TOP_P), "--min-p", str(MIN_P)),
        *("--max-tokens", str(settings.tokens), "--json", "--private"),
    ]
    return [*command, *model_settings(settings), *settings.localspec_options]


def model_settings(settings: Settings) -> list[str]:
    """What all commands of localspec have in common."""
    numbers = {
        "--ctx": settings.ctx,
        "--threads": settings.threads,
        "--gpu-layers": settings.gpu_layers,
        "--draft-threads": settings.threads,
        "--draft-gpu-layers": settings.gpu_layers,
    }
    return option_words(numbers)


@contextmanager
def loaded_engine(load: LoadCommand) -> Iterator[EngineProcess]:
    """An engine in its process, closed at the end."""
    engine = EngineProcess()
    try:
        engine.load(load)
        yield engine
    finally:
        engine.close()


def measured_costs(engine: EngineProcess, seconds: float = 2.0) -> MeasuredCosts:
    for _ in engine.probe(ProbeCommand(seconds=seconds)):
        pass
    assert engine.measured is not None
    return engine.measured


def generate_answer(
    engine: Session | EngineProcess, request: GenerateCommand
) -> GeneratedAnswer:
    """Raises BenchError if the engine exits."""
    answer = GeneratedAnswer()
    for event in engine.generate(request):
        answer.add(event)
    if answer.engine_exit is not None:
        raise BenchError(f"The engine exited: {answer.engine_exit.how}.")
    return answer


# --- the first characters


def raw_program(settings: Settings, prompt: str) -> list[str]:
    """llama.cpp's program that continues a text, which it writes first.

    Empty without that program.
    """
    if not settings.has_program("llama-completion"):
        return []
    options = ["-m", settings.target, "-n", "16", "-p", prompt, "-no-cnv"]
    options += ["--temp", "0"]
    return [settings.program("llama-completion"), *options, *settings.llama_cpp_options]


def first_output(
    settings: Settings, command: Sequence[str], after: bytes
) -> tuple[float, float]:
    """Seconds until output follows `after`, and CPU seconds until the end.

    Raises BenchError.
    """
    cpu_before = _child_cpu_seconds()
    began = time.perf_counter()
    seconds = 0.0
    text = b""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(settings),
    ) as process:
        assert process.stdout is not None
        while part := os.read(process.stdout.fileno(), 65536):
            text += part
            has_begun = after in text and text[text.find(after) + len(after) :].strip()
            if has_begun and not seconds:
                seconds = time.perf_counter() - began
    if process.returncode or not seconds:
        raise BenchError(f"{command[0]} failed: {text[-500:]!r}")
    return seconds, _child_cpu_seconds() - cpu_before


def _child_cpu_seconds() -> float:
    """CPU time of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
