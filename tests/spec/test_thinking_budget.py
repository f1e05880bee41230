"""A budget ends the thinking where it should, whatever drafts, and the answer follows."""

from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.protocol.events import Event, Notice, Round
from localspec.protocol.wire import ChatMessage, ContextSettings, GenerateCommand
from tests.support.sessions import GREEDY, Said, folded, loaded
from tests.support.zoo import Zoo

ROOMY = ContextSettings(flash_attn="on", n_ctx=512, n_ubatch=64, n_threads=1)
ALL = 7
"""Tokens of the tiny model's thinking."""


def ask(session: Session, **more: Any) -> tuple[Said, list[Event]]:
    asked = GenerateCommand(
        messages=(ChatMessage("user", "Hi?"),), sampling=GREEDY, max_tokens=99
    )
    events = list(session.generate(replace(asked, **more)))
    return folded(events), events


@pytest.mark.parametrize("spec", ["off", "model", "lookup", "auto"])
@pytest.mark.parametrize("think", [None, True])
def test_every_budget(zoo: Zoo, spec: str, think: bool | None) -> None:
    """The model opens its thinking itself, or the prompt does."""
    with loaded(zoo["thinker"], zoo["thinker"], ROOMY) as session:
        whole, _ = ask(session, spec=spec, think=think)
        assert whole.totals["thinking"] == {"tokens": ALL, "open": False}
        opened = 0 if think else 1
        for budget in range(ALL + 2):
            said, events = ask(session, spec=spec, think=think, think_budget=budget)
            ended = [e.code for e in events if isinstance(e, Notice)]
            expected = ["thinking-ended"] if budget <= ALL else []
            assert ended == expected
            assert said.totals["thinking"] == {
                "tokens": min(budget, ALL),
                "open": False,
            }
            assert said.text.endswith("</think>Hello there.")
            assert said.reason == "eog"
            assert said.ids[: opened + budget] == whole.ids[: opened + budget]
            given = [e for e in events if isinstance(e, Round) and "budget" in e.reason]
            assert len(given) == len(ended)
            assert said.totals["tokens"] == len(said.ids)
            n = len(said.ids)
            # and goes on, cut in thinking or after it
            for cut in (
                opened + budget,
                n - 2,
            ):
                rest, _ = ask(
                    session,
                    spec=spec,
                    think=think,
                    think_budget=budget,
                    resumed_tokens=tuple(said.ids[:cut]),
                )
                assert said.ids == [*said.ids[:cut], *rest.ids]


def test_an_answer_that_ends_while_thinking_says_so(zoo: Zoo) -> None:
    with loaded(zoo["thinker"], settings=ROOMY) as session:
        said, _ = ask(session, max_tokens=5)
        assert (said.reason, said.totals["thinking"]["open"]) == ("length", True)
        said, _ = ask(session, max_tokens=4, think_budget=2)
        assert (said.reason, len(said.ids)) == ("length", 4), (
            "the closing marker counts too"
        )
    with loaded(zoo["chatty"], settings=ROOMY) as session:
        said, _ = ask(session, think_budget=0)
        assert "thinking" not in said.totals and said.text.startswith("Sure!")
