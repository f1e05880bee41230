"""The line of a load on standard error."""

import time

import pytest

from localspec.cli import global_options, load_display
from localspec.cli.load_display import LoadDisplay
from localspec.protocol.events import Notice
from localspec.protocol.wire import LoadProgress

NOTICE = Notice("info", "code", "A notice.")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_options, "can_redraw", lambda: True)
    monkeypatch.setattr(load_display, "_DRAW_SECONDS", 0.01)


def read(capsys: pytest.CaptureFixture[str]) -> str:
    """What was drawn since, without the sequence that clears a line."""
    return capsys.readouterr().err.replace("\x1b[K", "")


def read_until(capsys: pytest.CaptureFixture[str], words: str) -> str:
    until = time.monotonic() + 30
    seen = ""
    while words not in seen:
        assert time.monotonic() < until, seen
        seen += read(capsys)
        time.sleep(0.01)
    return seen


@pytest.mark.usefixtures("terminal")
def test_a_slow_load_says_what_it_does_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LoadDisplay(quiet=False) as loading:
        loading.show(LoadProgress("starting"))
        read_until(capsys, "Loading: starting the engine")
        loading.show(LoadProgress("reading", "a.gguf", 0.5))
        read_until(capsys, "50 %")

    assert read(capsys).endswith("\r")


@pytest.mark.usefixtures("terminal")
def test_a_notice_stands_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LoadDisplay(quiet=False) as loading:
        read_until(capsys, "Loading")
        loading.show(NOTICE)

    assert "\rlocalspec: A notice.\n" in read(capsys)


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_terminal_a_load_is_silent(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_display, "_DRAW_SECONDS", 0.01)
    with LoadDisplay(quiet=quiet) as loading:
        loading.show(LoadProgress("starting"))
        time.sleep(0.1)

    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("terminal")
def test_a_quiet_load_is_silent_on_a_terminal_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LoadDisplay(quiet=True) as loading:
        loading.show(NOTICE)
        loading.show(LoadProgress("starting"))
        time.sleep(0.1)

    assert capsys.readouterr().err == ""
