"""Rows of Home: what the survey of this computer finds."""

import socket
from pathlib import Path

import pytest

from localspec import paths
from localspec.tui.home_rows import MachineSurvey, refine_survey
from tests.extras.workers.test_rpc import listening, status, worker
from tests.support import wizards


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
            MachineSurvey("this computer", workers=(str(address), gone))
        )
    assert survey.machine_label.endswith(f" · with {address} · without {gone}")
    assert survey.machine_profile is not None
    assert survey.machine_profile.workers == (str(address),)
