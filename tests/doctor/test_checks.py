"""Checks of disk, chats, models, network and terminal, and how all are run."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from localspec.doctor import checks
from localspec.doctor.findings import Finding
from tests.support.zoo import Zoo


def by_id(found: Iterator[Finding]) -> dict[str, Finding]:
    return {one.id: one for one in found}


def test_an_exception_in_a_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("first", "disk", "ok", "well")
        raise RuntimeError("no disk today")

    monkeypatch.setattr(checks, "AREAS", {"disk": broken})
    first, failed = checks.run_checks()
    assert (first.id, failed.id, failed.level) == ("first", "failed", "error")
    assert "no disk today" in failed.what


def test_findings_are_lines_without_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    monkeypatch.setenv(
        "HF_ENDPOINT", "https://ann:password@mirror.example:8443/x?key=1"
    )
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:password@proxy.example")
    found = checks.run_checks()
    assert {one.area for one in found} == set(checks.AREAS)
    assert "failed" not in {one.id for one in found}
    for one in found:
        assert one.what and "\n" not in one.what + one.fix
        assert one.level == "ok" or one.fix or one.level == "notice"
    shown = repr(found)
    assert "secret" not in shown and "password" not in shown
    assert "https://mirror.example:8443 instead of huggingface.co" in shown


def test_a_cache_that_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "below"))
    found = by_id(checks.check_disk())
    assert found["cache-refused"].fix
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "absent"))
    assert "models-folder" in by_id(checks.check_disk())


def test_a_wrong_variable_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[chats]\nkeep = false\n")
    monkeypatch.setenv("LOCALSPEC_CHATS_OVERFLOW", "perhaps")
    found = by_id(checks.check_area("disk"))
    wrong = found["environment-wrong"]
    assert (
        "LOCALSPEC_CHATS_OVERFLOW must be" in wrong.what
        and wrong.fix == "Change or unset it."
    )
    assert wrong.action is None and wrong.explanation and "config-damaged" not in found


def test_network_settings(tmp_path: Path) -> None:
    def check(**environ: str) -> Mapping[str, Finding]:
        return by_id(checks.check_network({"HF_HOME": str(tmp_path), **environ}))

    assert set(check()) == {"endpoint", "no-token"}
    assert check(HF_HUB_OFFLINE="1")["offline"].level == "notice"
    assert "offline" not in check(HF_HUB_OFFLINE="0")
    option = check(HF_HUB_OFFLINE="1", LOCALSPEC_OPTION_HF_HUB_OFFLINE="--offline")[
        "offline"
    ]
    assert option.what == "offline: --offline was given"
    assert option.fix == "leave it out, to download models"
    assert check(HF_ENDPOINT="mirror")["endpoint-wrong"].level == "warning"
    assert check(HF_ENDPOINT="http://[half")["endpoint-wrong"].fix
    assert check(https_proxy="http://p")["proxy"].level == "ok"
    (tmp_path / "token").write_text("hf_x")
    assert check()["token"].what == f"hub token in {tmp_path / 'token'}"


class FakeTerminal(io.StringIO):
    """Standard output with an encoding, on a terminal or not."""

    def __init__(self, name: str = "utf-8", tty: bool = True) -> None:
        super().__init__()
        self._name, self._tty = name, tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name

    def isatty(self) -> bool:
        return self._tty


def test_terminal_size_colours_and_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(terminal: FakeTerminal, **environ: str) -> dict[str, Finding]:
        return by_id(checks.check_terminal(environ, terminal))

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    found = check(FakeTerminal(), TERM="xterm-256color", TMUX="x", SSH_TTY="y")
    assert found["terminal"].what == "xterm-256color, 256 colours, in tmux, over SSH"
    assert found["small"].level == "notice"
    assert "pipe" in check(FakeTerminal(tty=False))["terminal"].what
    assert "small" not in check(FakeTerminal(tty=False))
    assert check(FakeTerminal("ascii"))["no-unicode"].level == "warning"
    assert check(FakeTerminal("UTF8"))["unicode"].level == "ok"
    assert "dumb" in check(FakeTerminal(), TERM="dumb")
    assert "NO_COLOR" in check(FakeTerminal(), NO_COLOR="1", TERM="x")["terminal"].what


def test_unreadable_models(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    assert by_id(checks.check_models())["models"].what == "none installed"
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 200)
    found = by_id(checks.check_models())
    assert found["models"].what.startswith("1 installed, ")
    assert "broken.gguf" in found["unreadable"].what
