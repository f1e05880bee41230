"""Tools in a chat with a real engine: a call is forced, and the chat goes on."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.chat.conversation import Turn
from localspec.chat.session import ChatSession
from localspec.protocol.events import GenerationFinished
from localspec.protocol.wire import SamplingParams
from localspec.tools.toolbox import Toolbox
from tests.support import sessions
from tests.support.fake_tools import (
    FakeTools,
    Person,
    make_tools,
    returning,
    write_call,
)
from tests.support.scenes import PAIR
from tests.support.zoo import RESULT_TEXT, Zoo

ROOM = replace(sessions.SETTINGS, n_ctx=4096)
CALL = write_call("fake_add", a=1, b=2)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


class FreeAfterCall(Person):
    """Its first answers are a call, by a grammar; after two results it is free."""

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self._session = session
        text = CALL.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        session.change_settings(grammar=f'root ::= "{text}"')

    def begin_turn(self, turn: Turn) -> None:
        super().begin_turn(turn)
        if len(self.turns) == 2:
            self._session.change_settings(grammar="")


def converse(zoo: Zoo, spec: str) -> tuple[Turn, ...]:
    """A question that is answered with two calls and a text."""
    draft = zoo["target"] if spec == "model" else None
    with sessions.loaded(zoo["target"], draft, ROOM) as loaded:
        engine = sessions.InProcess(loaded)
        session = ChatSession(PAIR, 1)
        session.attach_engine(engine, template="chatml")
        session.toolbox = Toolbox([make_tools()])
        session.change_settings(
            sampling=SamplingParams(temperature=0.8), max_tokens=160, spec=spec
        )
        person = FreeAfterCall(session)
        session.ask("What is 1 + 2?")
        for _ in session.stream_answer(engine, tools=person):
            pass
        return session.conversation.turns


def find_end(turn: Turn) -> GenerationFinished:
    (end,) = [each for each in turn.events if isinstance(each, GenerationFinished)]
    return end


def test_a_chat_with_calls_has_the_same_text_with_and_without_speculation(
    zoo: Zoo,
) -> None:
    plain = converse(zoo, "off")

    assert [turn.calls != () for turn in plain] == [True, True, False]
    assert [turn.answer for turn in plain[:2]] == [CALL, CALL]
    assert plain[2].results[0].text == "3"
    for spec in ("lookup", "model"):
        texts = [turn.answer for turn in converse(zoo, spec)]
        assert texts == [turn.answer for turn in plain], spec


def test_the_prompt_with_the_results_reuses_that_of_the_question(zoo: Zoo) -> None:
    first, second, third = converse(zoo, "off")

    for before, after in ((first, second), (second, third)):
        n_prompt = find_end(before).totals["prompt_tokens"]
        assert find_end(after).totals["reused_tokens"] >= n_prompt - 1


def test_a_model_with_a_template_for_tools_calls_and_answers(zoo: Zoo) -> None:
    tools = FakeTools("")
    tools.offer("weather", returning("Sunny."))
    with sessions.loaded(zoo["agent"]) as loaded:
        engine = sessions.InProcess(loaded)
        session = ChatSession(PAIR, 1)
        session.attach_engine(engine)
        session.toolbox = Toolbox([tools])
        session.change_settings(sampling=sessions.GREEDY, spec="off")
        person = Person()
        session.ask("How is the weather in Rome?")
        for _ in session.stream_answer(engine, tools=person):
            pass

    call_turn, step = session.conversation.turns
    assert tools.ran == [("weather", {"city": "Rome"})]
    assert call_turn.visible_answer(None) == "I look."
    assert step.answer == RESULT_TEXT
