"""Threads and event loops, as in a notebook: answers do not mix, nothing blocks forever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

import pytest

from localspec import LLM, Answer, Piece, errors
from tests.api.conftest import Load
from tests.support.zoo import HELLO_TEXT

LONG = 60_000
PROMPTS = [f"a{n}" for n in range(12)]


def answers(llm: LLM) -> dict[str, str]:
    return {prompt: llm.generate(prompt, seed=3, max_tokens=12).text for prompt in PROMPTS}


def test_threads_take_turns(load: Load) -> None:
    """Several threads get the same answers as one."""
    llm = load("target", "cousin")
    alone = answers(llm)
    assert len(set(alone.values())) > 1
    with ThreadPoolExecutor(6) as pool:
        together = list(
            pool.map(lambda prompt: llm.generate(prompt, seed=3, max_tokens=12).text, PROMPTS * 3)
        )
    assert together == list(alone.values()) * 3


def test_several_engines_at_once(load: Load) -> None:
    """Several LLMs are used from all threads while their streams are open."""
    engines = [load("target"), load("target", "cousin"), load("demo")]
    alone = [answers(llm) for llm in engines]
    open_ = [llm.stream("b", seed=1, max_tokens=30) for llm in engines]
    for stream in open_:
        next(stream)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(answers, engines)) == alone
    for stream in open_:
        assert "".join(map(str, stream)) == stream.answer.text[len(stream.answer.tokens[0].text) :]


def test_an_engine_made_and_left_by_a_thread_that_ends(load: Load) -> None:
    """The engine outlives the thread that created it."""
    made: list[LLM] = []
    maker = threading.Thread(target=lambda: made.append(load("parrot")))
    maker.start()
    maker.join()
    assert made[0].generate("a", temperature=0).text == HELLO_TEXT


def in_a_notebook(cell: Callable[[], None]) -> int:
    """Runs a cell like a notebook: in the thread of a running event loop.

    Gives how often the loop turned while another thread waited for answers.
    """

    async def kernel() -> int:
        cell()  # blocks this loop, as a cell does
        turns, thread = 0, asyncio.to_thread(cell)
        task = asyncio.ensure_future(thread)
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await task
        return turns

    return asyncio.run(kernel())


def test_in_a_notebook(load: Load) -> None:
    """Load, answer, stream and close in a cell, and in a thread while the loop runs."""

    def cell() -> None:
        with load("parrot") as llm:
            assert llm.generate("a", temperature=0).text == HELLO_TEXT
            assert "".join(map(str, llm.stream("a", temperature=0))) == HELLO_TEXT

    assert in_a_notebook(cell) > 10


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 120)

    asyncio.run(main())


def test_awaited_answers(load: Load) -> None:
    llm = load("target", "cousin")
    chatty = load("chatty", ctx=1024)
    alone = answers(llm)

    async def work() -> None:
        asked = [llm.agenerate(prompt, seed=3, max_tokens=12) for prompt in PROMPTS]
        said = await asyncio.gather(*asked)
        assert_type(said, list[Answer])
        assert [answer.text for answer in said] == list(alone.values())
        hello = await chatty.achat("Hi?", temperature=0)
        assert hello.text == chatty.chat("Hi?", temperature=0).text

    run(work)


def test_awaited_pieces_let_the_loop_go_on(load: Load) -> None:
    llm = load("chatter", ctx=2048)

    async def read(count: int) -> list[str]:
        pieces = llm.astream("a", temperature=0, max_tokens=count)
        found: list[str] = []
        async for piece in pieces:
            assert_type(piece, Piece)
            found.append(piece.text)
        return found

    async def work() -> None:
        both = await asyncio.gather(read(300), read(5))
        assert [len(found) for found in both] == [300, 5]
        assert both[1] == both[0][:5]

    run(work)


def test_a_task_that_is_cancelled_ends_its_answer(load: Load) -> None:
    llm = load("chatter", ctx=LONG)

    async def work() -> None:
        task = asyncio.ensure_future(llm.agenerate("a", temperature=0, max_tokens=LONG))
        await asyncio.sleep(0)
        reading = asyncio.Event()

        async def read() -> None:
            async for _ in llm.astream("a", temperature=0, max_tokens=LONG):
                reading.set()

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reader = asyncio.ensure_future(read())
        await reading.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert (await llm.agenerate("a", temperature=0, max_tokens=2)).text == " one two"

    run(work)


def test_an_awaited_loop_that_is_left_ends_its_answer(load: Load) -> None:
    llm = load("chatter", ctx=LONG)

    async def work() -> None:
        pieces = llm.astream("a", temperature=0, max_tokens=LONG)
        async for _ in pieces:
            break
        await pieces.aclose()
        assert (await llm.agenerate("a", temperature=0, max_tokens=2)).text == " one two"

    run(work)


def test_awaited_errors(load: Load) -> None:
    llm = load("nan-later")

    async def work() -> None:
        with pytest.raises(errors.EngineError) as failure:
            await llm.agenerate("a", temperature=0)
        assert failure.value.said
        with pytest.raises(errors.EngineError):
            async for _ in llm.astream("a", temperature=0):
                pass

    run(work)
