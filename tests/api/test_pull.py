"""Only `pull` downloads, and the network is not used afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.cli.household import BAD_PAIR, PAIR, Household
from tests.support.fake_hub import FakeHub
from tests.support.zoo import Zoo


@pytest.fixture
def house(zoo: Zoo, tmp_path: Path) -> Iterator[Household]:
    with FakeHub() as hub:
        yield Household(hub, zoo, tmp_path / "house")


def script(body: str, env: Mapping[str, str]) -> str:
    code = f"from localspec import LLM, errors\n{body}"
    asked = [sys.executable, "-X", "dev", "-W", "error", "-P", "-c", code]
    done = subprocess.run(
        asked, capture_output=True, text=True, env=environment(env), timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def answering(pull: bool) -> str:
    return f"""\
with LLM({PAIR!r}, ctx=512, pull={pull}) as llm:
    print(llm.ready.model, llm.ready.draft, len(llm.generate("a", max_tokens=5).tokens))
"""


def refused(reference: str, kind: str, *, pull: bool) -> str:
    return f"""\
try:
    LLM({reference!r}, pull={pull})
except errors.{kind} as error:
    print(error.hint)
"""


def test_what_is_not_here_is_not_fetched(house: Household) -> None:
    told = script(refused(PAIR, "NotFoundError", pull=False), house.env)
    assert told.startswith(f"Get it: localspec pull {PAIR}")
    assert house.hub.seen == [] and house.finals() == []


def test_what_is_asked_for_is_fetched_once_and_runs_without_a_network(house: Household) -> None:
    said = "Tiny-Q8_0.gguf Tiny-Draft-Q8_0.gguf 5\n"
    assert script(answering(pull=True), house.env) == said
    assert house.finals() == ["Tiny-Draft-Q8_0.gguf", "Tiny-Q8_0.gguf"]
    assert script(answering(pull=True), house.without_sockets()) == said


def test_a_pair_that_does_not_go_together_is_refused_before_its_bytes(house: Household) -> None:
    assert script(refused(BAD_PAIR, "IncompatiblePairError", pull=True), house.env)
    assert house.finals() == []


def test_offline_is_heeded(house: Household) -> None:
    env = house.env | {"HF_HUB_OFFLINE": "1"}
    assert script(refused(PAIR, "OfflineError", pull=True), env)
    assert house.hub.seen == []
