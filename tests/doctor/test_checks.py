"""Checks of disk, chats, models, network and terminal, and how all are run."""

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from localspec.doctor import checks
from localspec.doctor.findings import Finding
from localspec.machine.device import Device
from tests.support import ghost_projectors

CheckNetwork = Callable[..., Mapping[str, Finding]]


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


def test_findings_are_lines_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_cache_that_is_not_writable_is_a_finding_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "below"))
    found = by_id(checks.check_disk())
    assert found["cache-refused"].fix


def test_a_models_folder_that_is_not_there_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "absent"))
    assert "models-folder" in by_id(checks.check_disk())


def test_a_wrong_variable_is_not_blamed_on_the_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[chats]\nkeep = false\n")
    monkeypatch.setenv("LOCALSPEC_CHATS_OVERFLOW", "perhaps")
    found = by_id(checks.check_area("disk"))
    wrong = found["environment-wrong"]
    assert "LOCALSPEC_CHATS_OVERFLOW must be" in wrong.what
    assert wrong.fix == "Change or unset it."
    assert wrong.action is None
    assert wrong.explanation
    assert "config-damaged" not in found


# --- The network.


@pytest.fixture
def check_network(tmp_path: Path) -> CheckNetwork:
    def check(**environ: str) -> Mapping[str, Finding]:
        return by_id(checks.check_network({"HF_HOME": str(tmp_path), **environ}))

    return check


def test_without_settings_models_come_from_the_hub(check_network: CheckNetwork) -> None:
    assert set(check_network()) == {"endpoint", "no-token"}


def test_the_variable_of_the_hub_turns_the_network_off(
    check_network: CheckNetwork,
) -> None:
    assert check_network(HF_HUB_OFFLINE="1")["offline"].level == "notice"
    assert "offline" not in check_network(HF_HUB_OFFLINE="0")


def test_the_option_offline_is_named_as_the_cause(check_network: CheckNetwork) -> None:
    found = check_network(
        HF_HUB_OFFLINE="1", LOCALSPEC_OPTION_HF_HUB_OFFLINE="--offline"
    )
    assert found["offline"].what == "offline: --offline was given"
    assert found["offline"].fix == "leave it out, to download models"


@pytest.mark.parametrize("endpoint", ["mirror", "http://[half"])
def test_an_endpoint_that_is_no_address_is_a_warning(
    endpoint: str, check_network: CheckNetwork
) -> None:
    found = check_network(HF_ENDPOINT=endpoint)["endpoint-wrong"]
    assert found.level == "warning"
    assert found.fix


def test_a_proxy_is_named_in_either_case(check_network: CheckNetwork) -> None:
    assert check_network(https_proxy="http://p")["proxy"].level == "ok"


def test_a_token_file_is_named_and_not_read(
    tmp_path: Path, check_network: CheckNetwork
) -> None:
    (tmp_path / "token").write_text("hf_x")
    assert check_network()["token"].what == f"hub token in {tmp_path / 'token'}"


# --- The terminal.


class FakeTerminal(io.StringIO):
    """Standard output with an encoding, on a terminal or not."""

    def __init__(self, name: str = "utf-8", tty: bool = True) -> None:
        super().__init__()
        self._name = name
        self._tty = tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name

    def isatty(self) -> bool:
        return self._tty


def check_terminal(terminal: FakeTerminal, **environ: str) -> dict[str, Finding]:
    return by_id(checks.check_terminal(environ, terminal))


def test_a_terminal_is_described_by_name_colours_and_surroundings() -> None:
    found = check_terminal(FakeTerminal(), TERM="xterm-256color", TMUX="x", SSH_TTY="y")
    assert found["terminal"].what == "xterm-256color, 256 colours, in tmux, over SSH"


def test_a_terminal_without_colours_says_why() -> None:
    found = check_terminal(FakeTerminal(), NO_COLOR="1", TERM="x")
    assert "NO_COLOR" in found["terminal"].what


def test_only_a_terminal_can_be_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    assert check_terminal(FakeTerminal())["small"].level == "notice"
    piped = check_terminal(FakeTerminal(tty=False))
    assert "pipe" in piped["terminal"].what
    assert "small" not in piped


def test_an_encoding_other_than_utf8_is_a_warning() -> None:
    assert check_terminal(FakeTerminal("ascii"))["no-unicode"].level == "warning"
    assert check_terminal(FakeTerminal("UTF8"))["unicode"].level == "ok"


def test_a_dumb_terminal_is_a_finding() -> None:
    assert "dumb" in check_terminal(FakeTerminal(), TERM="dumb")


# --- The models.


def test_a_file_that_cannot_be_read_is_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    assert by_id(checks.check_models())["models"].what == "none installed"
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 200)
    found = by_id(checks.check_models())
    assert found["models"].what.startswith("1 installed, ")
    assert "broken.gguf" in found["unreadable"].what


def test_a_projector_beside_its_model_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    projector = ghost_projectors.tiny().write(folder / "mmproj-F16.gguf")
    assert set(by_id(checks.check_models())) == {"models"}
    projector.write_bytes(projector.read_bytes()[:-1000])
    assert "mmproj-F16.gguf" in by_id(checks.check_models())["unreadable"].what


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_variable_that_switches_cuda_graphs_off_is_named_whatever_it_says(
    value: str,
) -> None:
    environ = {"GGML_CUDA_DISABLE_GRAPHS": value}
    card = Device("CUDA0", "NVIDIA GeForce RTX 3090", backend="CUDA")
    (found,) = checks._check_cuda_graphs(environ, [card])
    assert found.level == "notice"
    assert "GGML_CUDA_DISABLE_GRAPHS" in found.what
    assert "unset" in found.fix
    (without,) = checks._check_cuda_graphs(environ, [])
    assert without.level == "ok"
    assert not list(checks._check_cuda_graphs({}, [card]))
