"""Real workers on this computer, with llama.cpp's RPC backend built from its sources."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from localspec import paths
from localspec.chat.session import ChatSession
from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.errors import EngineError, InUseError, OutOfMemoryError
from localspec.extras.workers import preflight, side_library
from localspec.extras.workers.address import WorkerAddress, parse_address
from localspec.extras.workers.server import WorkerServer, WorkerSettings
from localspec.extras.workers.wire import HELLO
from localspec.fit import advisor
from localspec.launch import LoadOptions, ResolvedPair
from localspec.machine import installed_llama_cpp
from localspec.protocol.events import EngineExit, Round
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from tests.engine_process.cable import Cable
from tests.support.dialogue import Dialogue
from tests.support.downloads import wait_for
from tests.support.scenes import phase, shown_tokens
from tests.support.scripted_engine import painted, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

HERE = ContextSettings(n_threads=1)
DEMO = paths.package_data_dir() / "demo"
N_LAYERS = 6
"""Of the demo's target."""


def chat(app: LocalspecApp) -> ChatScreen:
    assert isinstance(app.screen, ChatScreen)
    return app.screen


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """Built once for all runs of the tests: it takes a download."""
    assert pytestconfig.cache is not None
    kept = pytestconfig.cache.mkdir("rpc") / f"{installed_llama_cpp.version()}.so"
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


@contextmanager
def serving(library: Path, port: int = 0, **settings: Any) -> Iterator[WorkerServer]:
    server = WorkerServer(WorkerSettings(threads=1, port=port, **settings), library)
    threading.Thread(target=server.serve, daemon=True).start()
    with closing(server):
        yield server


@pytest.fixture
def workers(library: Path) -> Iterator[tuple[WorkerServer, WorkerServer]]:
    with serving(library) as one, serving(library) as other:
        yield one, other


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
    command = [
        sys.executable,
        "-m",
        "localspec",
        "worker",
        "--port",
        "0",
        "--threads",
        "1",
    ]
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
            with suppress(psutil.NoSuchProcess):
                child.resume()
    process.communicate(timeout=30)


def remote(*workers: WorkerServer) -> ContextSettings:
    return replace(
        HERE, remote_hosts=tuple(f"127.0.0.1:{worker.port}" for worker in workers)
    )


@dataclass
class Answer:
    text: str = ""
    n_passes: int = 0
    end: EngineExit | None = None


def load(
    settings: ContextSettings, timeouts: EngineTimeouts | None = None
) -> EngineProcess:
    command = LoadCommand(
        target=str(DEMO / "demo-target.gguf"),
        draft=str(DEMO / "demo-draft.gguf"),
        target_settings=settings,
        draft_settings=HERE,
    )
    engine = EngineProcess(timeouts=timeouts or EngineTimeouts())
    try:
        engine.load(command)
    except BaseException:
        engine.close()
        raise
    return engine


def ask(
    engine: EngineProcess,
    n: int,
    spec: str = "off",
    temperature: float = 0,
    after_two_rounds: Callable[[], None] = lambda: None,
) -> Answer:
    sampling = SamplingParams(temperature=temperature, seed=7)
    request = GenerateCommand("def fibonacci(n):", sampling, max_tokens=n, spec=spec)
    answer = Answer()
    for event in engine.generate(request):
        if isinstance(event, Round):
            answer.n_passes += 1
            answer.text += "".join(token.text for token in event.tokens)
            if event.n == 1:
                after_two_rounds()
        if isinstance(event, EngineExit):
            answer.end = event
    return answer


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_two_workers_one_text(
    temperature: float, workers: tuple[WorkerServer, WorkerServer]
) -> None:
    texts: set[str] = set()
    for settings in (HERE, remote(*workers)):
        with closing(load(settings)) as engine:
            for spec in ("off", "model"):
                texts.add(ask(engine, 60, spec, temperature).text)
    assert len(texts) == 1
    assert len(texts.pop()) > 60


def test_a_pass_is_one_round_trip_a_worker(
    workers: tuple[WorkerServer, WorkerServer],
) -> None:
    with closing(load(remote(*workers))) as engine:
        ask(engine, 1)  # reads the prompt
        before = [worker.activity for worker in workers]
        n_passes = ask(engine, 80).n_passes
        after = [worker.activity for worker in workers]
    logits = 4 * 4096 * n_passes
    assert sum(activity.n_layers for activity in after) == N_LAYERS
    for earlier, later in zip(before, after, strict=True):
        assert later.n_passes - earlier.n_passes == n_passes
        assert later.n_round_trips - earlier.n_round_trips == n_passes
        assert 0 < later.sent - earlier.sent < logits / 4


def test_a_chat_and_a_server_use_a_worker(
    workers: tuple[WorkerServer, WorkerServer],
) -> None:
    server = workers[0]
    address = f"127.0.0.1:{server.port}"
    with Dialogue("run", "demo", "--workers", address, "--max-tokens", "9") as chat:
        chat.until("\n> ")
        chat.line("def fibonacci(n):")
        assert server.activity.n_layers == N_LAYERS
        assert server.activity.n_passes > 1
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workers", address],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    wait_for(lambda: server.activity.n_layers == N_LAYERS, 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    wait_for(lambda: not server.activity.client, 30)


@pytest.mark.parametrize("loss", ["killed", "stopped", "cable"])
def test_a_lost_worker_is_named_and_the_text_is_kept(
    loss: str, program: WorkerProgram
) -> None:
    """Also one that is stopped, or a cable that was cut: llama.cpp would wait for ever."""
    with closing(Cable(parse_address(program.address).port)) as cable:
        used = cable.address if loss == "cable" else program.address
        lose = {
            "killed": lambda: program.signal(signal.SIGKILL),
            "stopped": lambda: program.signal(signal.SIGSTOP),
            "cable": cable.cut,
        }[loss]
        settings = replace(HERE, remote_hosts=(used,))
        engine = load(settings, EngineTimeouts(remote_check=1))
        with closing(engine):
            answer = ask(engine, 900, after_two_rounds=lose)
    assert answer.text
    assert answer.end is not None
    assert answer.end.how == "worker"
    assert f"{used} does not answer" in answer.end.hint


@pytest.mark.parametrize("is_back", [True, False])
async def test_f5_finishes(
    is_back: bool, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the demo would be faster here
    monkeypatch.setattr(advisor, "_MIN_REMOTE_GAIN", 1e-9)
    demo = ResolvedPair(DEMO / "demo-target.gguf", DEMO / "demo-draft.gguf", "model")
    session = ChatSession(demo, seed=1)  # So f5 gives its text again.
    runner = EngineRunner()
    session.change_settings(max_tokens=300)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(serving(library))
        port = server.port
        cable = stack.enter_context(closing(Cable(port)))
        options = AppOptions(
            seed=1,
            load=LoadOptions(remote_hosts=(cable.address,), can_skip_remote=True),
        )
        app = LocalspecApp(
            options, runner, lambda: ChatScreen(session, runner, options)
        )
        stack.callback(runner.close, wait=10)
        pilot = await stack.enter_async_context(app.run_test(size=(100, 30)))
        await wait_until(pilot, lambda: phase(pilot) == "ready", 60)
        assert server.activity.n_layers == N_LAYERS
        await pilot.press(*"import os")
        app.simulate_key("enter")  # a press would wait for the end of the answer
        await wait_until(pilot, lambda: shown_tokens(chat(app)) > 5, 60)
        server.close()
        await wait_until(pilot, lambda: phase(pilot) == "failed", 60)
        before = session.conversation.turns[0].answer
        assert f"{options.load.remote_hosts[0]} does not answer" in painted(app.screen)
        if is_back:
            server = stack.enter_context(serving(library, port))
        app.simulate_key("f5")
        if not is_back:
            await wait_until(pilot, lambda: "Going on without it" in toasts(app), 60)
        await wait_until(pilot, lambda: phase(pilot) == "ready", 60)
        finished = session.conversation.turns[0]
        assert finished.finish_reason is not None
        assert finished.answer
        if is_back:  # other devices may round differently, so that the text is another
            assert finished.answer.startswith(before)
            assert server.activity.n_layers == N_LAYERS
        else:
            assert server.activity.n_layers == 0


def toasts(app: LocalspecApp) -> str:
    return "".join(str(notification.message) for notification in app._notifications)


def test_it_outlives_a_killed_client_and_ends_with_its_input(
    program: WorkerProgram,
) -> None:
    address = parse_address(program.address)
    for _ in range(3):
        engine = load(replace(HERE, remote_hosts=(program.address,)))
        with pytest.raises(InUseError, match="one localspec at a time"):
            preflight.check(address)
        os.kill(engine.pid, signal.SIGKILL)
        engine.close()
        wait_for(lambda: is_free(address), 30)
    with closing(load(replace(HERE, remote_hosts=(program.address,)))) as engine:
        assert ask(engine, 5).text
        # not after the client has gone: its process ends, and the next one may not be
        # there yet
        children = psutil.Process(program.process.pid).children(recursive=True)
        assert children
    # it ends with its input, and leaves no process
    program.process.communicate(timeout=30)
    assert not psutil.wait_procs(children, timeout=10)[1]


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
        begin = chance.choice(
            [b"", HELLO, HELLO[:5], b"GET / HTTP/1.1\r\n\r\n", b"LOCALSPEC"]
        )
        rest = chance.randbytes(chance.choice([0, 1, 23, 24, 400]))
        with (
            socket.create_connection((address.host, address.port), 5) as line,
            suppress(OSError),
        ):
            line.sendall(begin + rest)
            if chance.random() < 0.5:
                line.shutdown(socket.SHUT_WR)
    wait_for(lambda: is_free(address), 60)
    wait_for(lambda: process.num_fds() <= before + 5, 60)
    with closing(load(replace(HERE, remote_hosts=(program.address,)))) as engine:
        assert ask(engine, 5).text


def test_more_memory_than_the_limit_is_refused(library: Path) -> None:
    with serving(library, memory=0.005) as server:
        with pytest.raises(OutOfMemoryError):
            load(remote(server))
        wait_for(lambda: is_free(WorkerAddress("127.0.0.1", server.port)), 30)


def test_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--via-ssh` with an ssh that runs the command here: no tunnel is needed."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nfor last; do :; done\nexec {sys.executable} -m $last --threads 1\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "localspec",
        "worker",
        "--via-ssh",
        "box",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for(lambda: not preflight.find_silent([f"127.0.0.1:{port}"]), 60)
    with closing(load(replace(HERE, remote_hosts=(f"127.0.0.1:{port}",)))) as engine:
        assert ask(engine, 5).text
    remote_end = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.communicate()
    assert not psutil.wait_procs(remote_end, timeout=10)[1]
