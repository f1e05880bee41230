"""Workers on this computer: llama.cpp's RPC backend built from its sources, and real deaths."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from localspec import paths
from localspec.chat.session import ChatSession
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.errors import EngineError, InUseError, OutOfMemoryError
from localspec.fit import advisor
from localspec.launch import ResolvedPair
from localspec.machine import installed_llama_cpp
from localspec.machine.rpc import preflight, side_library
from localspec.machine.rpc.server import WorkerServer, WorkerSettings
from localspec.machine.rpc.wire import HELLO
from localspec.protocol.events import EngineExit, Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand, SamplingParams
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.worker_address import WorkerAddress, parse_address
from tests.cli.command import command, environment
from tests.cli.dialogue import Dialogue
from tests.support.downloads import wait_for
from tests.support.scenes import phase, shown_tokens
from tests.support.scripted_engine import painted, wait_until
from tests.support.slow_line import Line, SlowLine
from tests.tui.test_engine_runner import chat

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

HERE = ContextSettings(n_threads=1)
DEMO = paths.package_data_dir() / "demo"
N_LAYERS = 6
"""Of the demo's target."""
SETTINGS = WorkerSettings(threads=1)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all runs of the tests: it takes a download."""
    cache = getattr(request.config, "cache", None)  # none with -p no:cacheprovider
    folder = cache.mkdir("rpc") if cache else tmp_path_factory.mktemp("rpc")
    kept = folder / f"{installed_llama_cpp.version()}.so"
    if not kept.exists():
        try:
            partial = kept.with_suffix(f".{os.getpid()}")
            partial.write_bytes(side_library.find_or_build(print).read_bytes())
            partial.replace(kept)
        except EngineError as error:
            pytest.skip(error.message)
    return kept


@pytest.fixture(autouse=True)
def installed(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path))
    built = side_library.built_file()
    built.parent.mkdir(parents=True)
    built.symlink_to(library)


@pytest.fixture
def workers(library: Path) -> Iterator[tuple[WorkerServer, WorkerServer]]:
    servers = (serving(library), serving(library))
    yield servers
    for server in servers:
        server.close()


@dataclass
class WorkerProgram:
    """`localspec worker` as a person starts it, in a process group of its own."""

    process: subprocess.Popen[str]
    address: str

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            child.send_signal(number)


@pytest.fixture
def program() -> Iterator[WorkerProgram]:
    command = [sys.executable, "-m", "localspec", "worker", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    yield WorkerProgram(process, process.stdout.readline().strip())
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
        for child in psutil.Process(process.pid).children(recursive=True):
            child.resume()
    process.communicate(timeout=30)


def remote(*workers: WorkerServer) -> ContextSettings:
    return replace(HERE, workers=tuple(f"127.0.0.1:{worker.port}" for worker in workers))


@dataclass
class Answer:
    text: str
    n_passes: int
    end: EngineExit | None = None


def load(settings: ContextSettings, timeouts: EngineTimeouts | None = None) -> EngineProcess:
    engine = EngineProcess(timeouts=timeouts) if timeouts else EngineProcess()
    target, draft = (str(DEMO / f"demo-{name}.gguf") for name in ("target", "draft"))
    engine.load(LoadCommand(target, draft, settings, HERE))
    return engine


def ask(engine: EngineProcess, n: int, spec: str = "off", temperature: float = 0) -> Answer:
    sampling = SamplingParams(temperature=temperature, seed=7)
    request = GenerateCommand("def fibonacci(n):", sampling, max_tokens=n, spec=spec)
    answer = Answer("", 0)
    for event in engine.generate(request):
        if isinstance(event, Round):
            answer.n_passes += 1
            answer.text += "".join(token.text for token in event.tokens)
        if isinstance(event, EngineExit):
            answer.end = event
    return answer


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_pair_over_two_workers_writes_the_same_text(
    temperature: float, workers: tuple[WorkerServer, WorkerServer]
) -> None:
    texts = set()
    for settings in (HERE, remote(*workers)):
        engine = load(settings)
        texts |= {ask(engine, 60, spec, temperature).text for spec in ("off", "model")}
        engine.close()
    assert len(texts) == 1
    assert len(texts.pop()) > 60


def test_verify_over_two_workers_says_lossless(workers: tuple[WorkerServer, WorkerServer]) -> None:
    addresses = ",".join(remote(*workers).workers)
    words = ["verify", "demo", "--workers", addresses, "--seconds", "0", "--tokens", "8"]
    done = subprocess.run(
        command(*words, "--threads", "1", "--json", "-q"),
        env=environment(),
        capture_output=True,
        timeout=600,
        check=True,
    )
    document = json.loads(done.stdout)
    assert document["verdict"] == "lossless"
    assert document["whole"] is True and document["guesses"] > 0
    for worker in workers:
        assert worker.activity.n_passes > 100


def test_each_pass_makes_one_round_trip_to_each_worker_and_logits_stay_here(
    workers: tuple[WorkerServer, WorkerServer],
) -> None:
    engine = load(remote(*workers))
    ask(engine, 1)  # reads the prompt
    before = [worker.activity for worker in workers]
    n_passes = ask(engine, 80).n_passes
    after = [worker.activity for worker in workers]
    engine.close()
    logits = 4 * 4096 * n_passes
    assert sum(activity.n_layers for activity in after) == N_LAYERS
    for earlier, later in zip(before, after, strict=True):
        assert later.n_passes - earlier.n_passes == n_passes
        assert later.n_round_trips - earlier.n_round_trips == n_passes
        assert 0 < later.sent - earlier.sent < logits / 4


def test_a_chat_on_the_terminal_and_a_server_use_a_worker(library: Path) -> None:
    server = serving(library)
    address = f"127.0.0.1:{server.port}"
    with Dialogue("run", "demo", "--workers", address, "--max-tokens", "9") as chat:
        chat.until("\n> ")
        chat.line("def fibonacci(n):")
        assert server.activity.n_layers == N_LAYERS
        assert server.activity.n_passes > 1
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workers", address], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    wait_for(lambda: server.activity.n_layers == N_LAYERS, 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    wait_for(lambda: not server.activity.client, 30)
    server.close()


@pytest.mark.parametrize("loss", ["killed", "stopped", "cable"])
def test_a_lost_worker_is_named_and_the_text_is_kept(loss: str, program: WorkerProgram) -> None:
    """Also one that only sleeps, or a cable that was pulled: llama.cpp would wait for ever."""
    address = parse_address(program.address)
    line = SlowLine((address.host, address.port), Line(1.0, 125e6))
    used = line.address if loss == "cable" else program.address
    engine = load(replace(HERE, workers=(used,)), EngineTimeouts(worker_check=1))
    end, text = None, ""
    request = GenerateCommand("import os", SamplingParams(temperature=0), max_tokens=900)
    for event in engine.generate(request):
        if isinstance(event, Round):
            text += "".join(token.text for token in event.tokens)
            if event.n == 1 and loss == "cable":
                line.cut()
            elif event.n == 1:
                program.signal(signal.SIGKILL if loss == "killed" else signal.SIGSTOP)
        if isinstance(event, EngineExit):
            end = event
    engine.close()
    line.close()
    assert text and end is not None and end.how == "worker"
    assert f"{used} does not answer" in end.hint


@pytest.mark.asyncio
@pytest.mark.parametrize("is_back", [True, False])
async def test_f5_finishes_the_answer_with_the_worker_or_without_it(
    is_back: bool, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "_MIN_WORKER_GAIN", 1e-9)  # the demo would be faster here
    server = serving(library)
    port = server.port
    line = SlowLine(("127.0.0.1", port), Line(10.0, 125e6))
    options = AppOptions(seed=1, workers=(line.address,))
    runner = EngineRunner()
    demo = ResolvedPair(DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf", "model")
    session = ChatSession(demo)
    session.change_settings(max_tokens=300)
    app = LocalspecApp(options, runner, lambda: ChatScreen(session, runner, options))
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: phase(pilot) == "ready", 60)
        assert server.activity.n_layers == N_LAYERS
        await pilot.press(*"import os")
        app.simulate_key("enter")  # a press would wait for the end of the answer
        await wait_until(pilot, lambda: shown_tokens(chat(app)) > 5, 60)
        server.close()
        await wait_until(pilot, lambda: phase(pilot) == "failed", 60)
        before = session.conversation.turns[0].answer
        assert f"{options.workers[0]} does not answer" in painted(app.screen)
        if is_back:
            server = serving(library, port)
        app.simulate_key("f5")
        if not is_back:
            await wait_until(pilot, lambda: "Going on without it" in toasts(app), 60)
        await wait_until(pilot, lambda: phase(pilot) == "ready", 60)
        finished = session.conversation.turns[0]
        assert finished.finish_reason is not None and finished.answer
        if is_back:  # other devices may round differently, so that the text is another
            assert finished.answer.startswith(before)
        assert server.activity.n_layers == N_LAYERS * is_back
    runner.close(wait=10)
    line.close()
    server.close()


def toasts(app: LocalspecApp) -> str:
    return "".join(str(notification.message) for notification in app._notifications)


def serving(library: Path, port: int = 0) -> WorkerServer:
    server = WorkerServer(replace(SETTINGS, port=port), library)
    threading.Thread(target=server.serve, daemon=True).start()
    return server


def test_it_serves_again_after_a_client_was_killed(program: WorkerProgram) -> None:
    address = parse_address(program.address)
    for _ in range(3):
        engine = load(replace(HERE, workers=(program.address,)))
        with pytest.raises(InUseError, match="one localspec at a time"):
            preflight.check(address)
        os.kill(engine.pid, signal.SIGKILL)
        engine.close()
        wait_for(lambda: is_free(address), 30)
    assert ask(load(replace(HERE, workers=(program.address,))), 5).text


def is_free(address: WorkerAddress) -> bool:
    try:
        return bool(preflight.check(address))
    except InUseError:
        return False


def test_garbage_harms_nobody(program: WorkerProgram) -> None:
    chance = random.Random(1)
    address = parse_address(program.address)
    process = psutil.Process(program.process.pid)
    preflight.check(address)
    before = process.num_fds()
    for _ in range(200):
        begin = chance.choice([b"", HELLO, HELLO[:5], b"GET / HTTP/1.1\r\n\r\n", b"LOCALSPEC"])
        with socket.create_connection((address.host, address.port), 5) as line, suppress(OSError):
            line.sendall(begin + chance.randbytes(chance.choice([0, 1, 23, 24, 400])))
            if chance.random() < 0.5:
                line.shutdown(socket.SHUT_WR)
    wait_for(lambda: is_free(address), 60)
    wait_for(lambda: process.num_fds() <= before + 5, 60)
    assert ask(load(replace(HERE, workers=(program.address,))), 5).text


def test_a_worker_ends_with_its_input_and_leaves_no_process(program: WorkerProgram) -> None:
    children = psutil.Process(program.process.pid).children(recursive=True)
    assert children
    program.process.communicate(timeout=30)
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_more_memory_than_the_limit_is_refused(library: Path) -> None:
    server = WorkerServer(replace(SETTINGS, memory=0.005), library)
    threading.Thread(target=server.serve, daemon=True).start()
    with pytest.raises(OutOfMemoryError):
        load(remote(server))
    wait_for(lambda: is_free(WorkerAddress("127.0.0.1", server.port)), 30)
    server.close()


def test_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--via-ssh` with an ssh that runs the command here: no tunnel is needed."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nfor last; do :; done\nexec {sys.executable} -m $last --threads 1\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "localspec", "worker", "--via-ssh", "box", "--port", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: not preflight.find_silent([f"127.0.0.1:{port}"]), 60)
    assert ask(load(replace(HERE, workers=(f"127.0.0.1:{port}",))), 5).text
    remote_end = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.communicate()
    assert not psutil.wait_procs(remote_end, timeout=10)[1]
