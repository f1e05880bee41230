"""`localspec worker`: how the other computer uses it."""

import socket

import pytest

from localspec.extras import workers
from localspec.extras.workers import command as worker
from tests.cli.test_main import options_that_take_an_empty_text
from tests.support.run_command import localspec


def test_a_loopback_address_is_reached_through_ssh(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for listen in ["127.0.0.1", "127.0.0.5", "localhost"]:
        worker.explain_use(listen, 50052)
        told = capfd.readouterr().err
        assert f"ssh -N -L 50052:127.0.0.1:50052 {socket.gethostname()}\n" in told
        assert "localspec run … --workers 127.0.0.1:50052 " in told


@pytest.mark.parametrize("listen", ["0.0.0.0", "192.168.1.5", "no such host"])
def test_an_open_address_is_refused(listen: str) -> None:
    done = localspec("worker", "--listen", listen)

    assert done.code == 2
    assert not done.out
    assert "other computers could connect" in done.err
    assert "--via-ssh" in done.err


def test_an_empty_address_is_refused_when_it_is_used() -> None:
    (row,) = workers.COMMANDS

    assert options_that_take_an_empty_text(row) == {"listen"}
