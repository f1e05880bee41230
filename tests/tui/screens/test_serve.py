"""The live board of `localspec serve`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from localspec.chat.settings import ChatSettings
from localspec.launch import ResolvedPair
from localspec.protocol.events import (
    EngineReady,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    Token,
)
from localspec.serve.request_metrics import (
    RequestActivity,
    RequestState,
    ServerActivity,
)
from localspec.serve.served_model import ServedModel
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.serve import ServeScreen
from tests.support.app_driver import AppDriver

READY = EngineReady(
    engine={},
    model="Qwen3-8B-Q4_K_M.gguf",
    draft="Qwen3-0.6B-Q8_0.gguf",
    devices=(),
    settings={"target": {"n_ctx": 8192}},
    memory={"used": 6_200_000_000},
    load_ms=900.0,
)
BEGAN = 1000.0


def drafted_round(n: int) -> Round:
    """Three draft tokens, of which two are accepted; every fourth is by lookup."""
    return Round(
        n=n,
        source="lookup" if n % 4 == 3 else "model",
        reason="",
        drafted=3,
        accepted=2,
        tokens=tuple(Token(i, "x", "accepted") for i in range(3)),
        ms=RoundTimes(1, 2, 0),
    )


def plain_round(n: int) -> Round:
    return Round(
        n=n,
        source=None,
        reason="",
        drafted=0,
        accepted=0,
        tokens=(Token(1, "x", "plain"),),
        ms=RoundTimes(0, 2, 0),
    )


SERVED = ServedModel(
    "Qwen3-8B-Q4_K_M",
    ResolvedPair(Path("Qwen3-8B-Q4_K_M.gguf"), Path("Qwen3-0.6B-Q8_0.gguf")),
    ChatSettings(),
)


@dataclass
class FakeServer:
    url: str = "http://127.0.0.1:8080"
    activity: ServerActivity = field(default_factory=ServerActivity)
    ready: EngineReady | None = READY
    served: ServedModel = SERVED
    is_running: bool = True

    def answer(
        self, n_rounds: int, state: RequestState = "done", route: str = "chat"
    ) -> None:
        """A whole answer of such rounds as `drafted_round`."""
        request = self.begin(route)
        self.add(request, Prefill(40, 1200, 40))
        for n in range(n_rounds):
            self.add(request, drafted_round(n))
        timings = {"prefill_ms": 800.0, "decode_ms": n_rounds * 60.0}
        totals = {
            "prompt_tokens": 1200,
            "reused_tokens": 900,
            "tokens": 3 * n_rounds,
            "timings": timings,
        }
        self.add(request, GenerationFinished("eog", totals=totals))
        self.activity.end(request, state, 200)
        request.answer_began = BEGAN + 1
        request.ended = request.answer_began + n_rounds * 0.06

    def begin(self, route: str = "chat") -> RequestActivity:
        request = self.activity.begin(f"/v1/{route}/completions")
        request.began = BEGAN
        return request

    def add(
        self, request: RequestActivity, event: Prefill | Round | GenerationFinished
    ) -> None:
        request.add(event)
        self.activity.add(event)


def board(server: FakeServer) -> LocalspecApp:
    options = AppOptions()
    return LocalspecApp(
        options, EngineRunner(), lambda: ServeScreen(cast(Any, server), options)
    )


def busy() -> FakeServer:
    """Answers of three kinds behind one that runs and one that waits."""
    server = FakeServer()
    server.answer(60)
    server.answer(20, "cancelled", "text")
    server.answer(4, "failed")
    running = server.begin()
    waiting = server.begin("text")
    server.add(running, plain_round(0))
    running.answer_began = BEGAN + 1
    # A picture of the board is then always the same.
    running.ended = BEGAN + 2
    waiting.ended = BEGAN + 2
    return server


async def test_the_board_follows_the_server_and_ends_with_it() -> None:
    """Without a rate while only a few tokens are drafted."""
    server = FakeServer(ready=None)
    async with board(server).run_test(size=(80, 24)) as pilot:
        shown = AppDriver(pilot)
        await shown.sees("Loading the model")
        server.ready = READY
        await shown.sees("No request yet", "nothing drafted yet")
        server.answer(2)
        await shown.sees("4 of 6 draft tokens accepted")
        server.answer(58)
        await shown.sees("120 of 180", "2 done", "75 % reused", "lookup 28 of 42")
        server.is_running = False
        await shown.wait(lambda: not shown.app.is_running)
