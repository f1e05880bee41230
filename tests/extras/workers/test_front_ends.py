"""The option `workers` in commands, in Python, on Home and in the preferences."""

import socket
from pathlib import Path

import pytest
from textual.widgets import Input

from localspec import LLM, launch, paths
from localspec.engine_process.client import EngineTimeouts
from localspec.errors import UsageError
from localspec.launch import ResolvedPair
from localspec.protocol import wire
from localspec.protocol.events import EngineExit
from localspec.tui.home_rows import MachineSurvey, refine_survey
from localspec.tui.screens.home import HomeScreen
from tests.engine_process.ends import start_failing
from tests.extras.workers.test_rpc import listening, refusing, status, worker
from tests.support import wizards
from tests.support.run_command import been_here, localspec
from tests.support.zoo import Zoo
from tests.tui.screens.test_preferences import preferences


def test_workers_of_the_settings_are_optional(zoo: Zoo) -> None:
    given = ("run", zoo["parrot"], "-p", "hello", "--max-tokens", "2")
    with refusing() as address:
        gone = str(address)
        refused = localspec(*given, "--workers", gone)
        done = localspec(*given, env={"LOCALSPEC_RUN_WORKERS": gone})
        none = ("--workers", "none")
        silent = localspec(*given, *none, env={"LOCALSPEC_RUN_WORKERS": gone})
    unreachable = f"The worker {gone} cannot be reached: connection refused."
    assert refused.code == 9
    assert refused.out == b""
    assert unreachable in refused.err
    assert done.code == 0
    assert done.out
    assert f"{unreachable} Going on without it." in done.err
    assert silent.code == 0
    assert gone not in silent.err


def test_home_counts_the_other_computers_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf.yaml"
    # of the shipped catalogue each pair would be estimated
    shelf.write_text(wizards.MODELS)
    monkeypatch.setattr(paths, "catalog_file", lambda: shelf)
    with socket.socket() as closed, listening(worker(status())) as address:
        closed.bind(("127.0.0.1", 0))  # held, and nobody listens
        gone = "{}:{}".format(*closed.getsockname())
        survey = refine_survey(
            MachineSurvey("this computer", remote_hosts=(str(address), gone))
        )
    assert survey.machine_label.endswith(f" · with {address} · without {gone}")
    assert survey.machine_profile is not None
    assert survey.machine_profile.remote_hosts == (str(address),)


def test_an_address_that_makes_no_sense_is_refused_in_python() -> None:
    with pytest.raises(UsageError, match="'gpu-box:x' is no worker's address"):
        LLM("demo", workers="gpu-box:x")


def test_workers_of_the_settings_are_a_wish_of_the_search(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('run.workers = "10.0.0.9"\n')

    wishes = launch.saved_criteria().wishes

    assert wishes.load.target_settings.remote_hosts == ("10.0.0.9:50052",)
    assert wishes.can_skip_remote


async def test_workers_are_taken_over_from_the_preferences() -> None:
    been_here(paths.data_dir())
    async with preferences() as page:
        await page.go("run.workers")
        field = page.app.focused
        assert isinstance(field, Input)
        field.value = "a,b,c"
        await page.sees("must be one or two computers")
        await page.press("enter")
        assert page.file == {}

        await page.go("run.workers")
        field.value = "a,b"
        await page.press("up")

        assert page.file == {"run": {"workers": "a,b"}}
        pair = ResolvedPair(Path("t"), Path("d"))
        request = page.options.build_load_request(pair)
        assert request.load.target_settings.remote_hosts == ("a:50052", "b:50052")
        assert request.load.draft_settings.remote_hosts == ()
        assert request.can_skip_remote
        await page.press("escape")
        await page.reaches(HomeScreen)


def test_a_worker_that_is_silent_ends_the_answer_though_a_gpu_computes() -> None:
    patience = EngineTimeouts(handshake=20, load=20, answer=120, remote_check=0)
    engine = start_failing("prefill", "compiles", patience)
    try:
        settings = wire.ContextSettings(remote_hosts=("127.0.0.1:1",))
        engine.load(wire.LoadCommand("gpu.gguf", target_settings=settings))

        last = list(engine.generate(wire.GenerateCommand("hi")))[-1]

        assert isinstance(last, EngineExit)
        assert last.how == "worker"
    finally:
        engine.close()
