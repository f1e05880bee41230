"""A fake engine process that answers at a fixed speed, for tui.py."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from localspec import child_process
from localspec.protocol import wire
from localspec.protocol.events import (
    EngineReady,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    TokenClass,
)

FIRST = "FIRST "
LAST = " LAST"


def engine(rate: float, tokens: int, *, chats: bool, drafts: bool) -> None:
    """Serves the protocol; answers with `tokens` tokens, `rate` per second.

    `drafts`: in rounds of three, with two tokens that were guessed right and two wrong.
    """
    out = child_process.take_over_stdout()

    def say(number: int, answer: wire.EngineOutput) -> None:
        os.write(out, wire.encode_output(number, answer))

    say(0, wire.HelloReply(wire.PROTOCOL_VERSION, os.getpid()))
    for line in sys.stdin.buffer:
        number, command = wire.decode_command(line)
        if isinstance(command, wire.LoadCommand):
            template = "own" if chats else None
            ready = EngineReady(
                engine={},
                model=command.target,
                draft=None,
                devices=(),
                settings={"target": {"n_ctx": 1 << 20}, "chat": {"template": template}},
                memory={},
                load_ms=1.0,
            )
            say(number, ready)
        elif isinstance(command, wire.ProbeCommand):
            say(number, wire.MeasuredCosts(2.0, {"1": 1.0}))
        elif isinstance(command, wire.GenerateCommand):
            say(number, SpeculationPlan("on", "scripted", 1.8))
            say(number, Prefill(done=4, total=4, reused=0))
            rounds = draft(rate, tokens) if drafts else answer(rate, tokens)
            for event in rounds:
                say(number, event)
            say(number, GenerationFinished("length"))
        elif isinstance(command, wire.CountCommand):
            say(number, wire.CountResult(4))  # The context has room for any of it.
        if not isinstance(command, wire.StopCommand):
            say(number, wire.DoneReply())


def texts_of(tokens: int) -> list[str]:
    return [FIRST, *map(word, range(1, tokens - 1)), LAST]


def draft(rate: float, tokens: int) -> Iterator[Round]:
    """The first and the last token are rounds by themselves."""
    texts = texts_of(tokens)
    rounds = [texts[:1]]
    rounds += [texts[start : start + 3] for start in range(1, tokens - 1, 3)]
    rounds[-1] = [text for text in rounds[-1] if text != LAST]
    rounds.append([LAST])
    for n, own in enumerate(rounds):
        time.sleep(len(own) / rate)
        kind: TokenClass = "correction" if len(own) > 1 else "plain"
        right = tuple(Token(n, text, "accepted") for text in own[:-1])
        rejected = ("wrong ", "words ") if kind == "correction" else ()
        yield Round(
            n=n,
            source="lookup" if rejected else None,
            reason="",
            drafted=len(right) + len(rejected),
            accepted=len(right),
            tokens=(*right, Token(n, own[-1], kind)),
            ms=RoundTimes(draft=0, verify=len(own) * 1e3 / rate, host=0),
            rejected=rejected,
        )


def answer(rate: float, tokens: int) -> Iterator[Round]:
    """One token per round, the most expensive case."""
    for n, text in enumerate(texts_of(tokens)):
        time.sleep(1 / rate)
        yield Round(
            n=n,
            source=None,
            reason="",
            drafted=0,
            accepted=0,
            tokens=(Token(n, text, "plain"),),
            ms=RoundTimes(draft=0, verify=1e3 / rate, host=0),
        )


def word(n: int) -> str:
    """Markdown, with a paragraph now and then and a heading or a block of code."""
    if n % 400 == 0:
        return "\n\n```python\nX = 1\nY = [X, 2, 3]\n```\n\n"
    if n % 200 == 0:
        return f"\n\n# {n}\n\n"
    if n % 50 == 0:
        return ".\n\n"
    if n % 25 == 0:
        return f"**{n}** "
    return f"W{n} "


if __name__ == "__main__":
    engine(
        float(sys.argv[1]),
        int(sys.argv[2]),
        chats=sys.argv[3] == "1",
        drafts=sys.argv[4] == "1",
    )
