"""`LLM` against real engines: answers, chats, streams, threads and event loops."""

import asyncio
import gc
import itertools
import json
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import assert_type

import pytest

from localspec import LLM, Answer, LocalspecError, Piece, Stream, errors
from localspec.launch import recent_pairs
from localspec.machine import measurements
from localspec.protocol.events import Token
from localspec.protocol.wire import ChatMessage
from tests.api.conftest import LONG, Load
from tests.support.run_command import localspec
from tests.support.zoo import CHAT_TEXT, HELLO_TEXT, THOUGHT_TEXT, Zoo

HI = [{"role": "user", "content": "Hi?"}]
PROMPTS = [f"a{n}" for n in range(12)]


def few(llm: LLM) -> list[str]:
    """The next answer, to check that the engine still works."""
    return llm.generate("a", temperature=0, max_tokens=3).text.split()


def answers(llm: LLM) -> dict[str, str]:
    return {
        prompt: llm.generate(prompt, seed=3, max_tokens=12).text for prompt in PROMPTS
    }


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 120)

    asyncio.run(main())


def test_an_answer_and_its_numbers(load: Load) -> None:
    answer = load("parrot", "parrot", spec="model").generate(
        "a", temperature=0, max_tokens=50
    )
    assert_type(answer, Answer)
    assert (answer.text, answer.finish_reason) == (HELLO_TEXT, "eog")
    assert str(answer) == answer.said == answer.text
    assert all(isinstance(token, Token) for token in answer.tokens)
    assert {token.kind for token in answer.tokens} >= {"plain", "accepted"}
    assert answer.speculation["accepted"] > 0 and answer.timings["load_ms"] > 0
    assert repr(answer) == f"Answer({HELLO_TEXT!r}, {len(answer.tokens)} tokens, eog)"
    assert (answer.model, answer.draft) == ("parrot.gguf", "parrot.gguf")


def test_the_same_seed_gives_what_the_command_prints(load: Load) -> None:
    """The document of `run --json`, without the timings."""
    asked = (
        "-p",
        "def fibonacci(n):",
        "--max-tokens",
        "40",
        "--seed",
        "7",
        "--json",
        "-q",
    )
    printed = localspec(
        "run", "demo", *asked, "--ctx", "512", "--threads", "1"
    ).document
    answer = load("demo").generate("def fibonacci(n):", max_tokens=40, seed=7)
    said = json.loads(json.dumps(answer.document()))
    assert (
        said.keys() == printed.keys()
        and said["timings"].keys() == printed["timings"].keys()
    )
    assert said["speculation"].keys() == printed["speculation"].keys()
    same = set(said) - {"timings", "speculation", "draft"}
    assert {name: said[name] for name in same} == {name: printed[name] for name in same}
    given = load("target", seed=5)  # for every answer
    texts = [
        given.generate("a", max_tokens=12, seed=seed).text for seed in (None, None, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_without_a_model_it_is_the_one_that_run_takes(zoo: Zoo) -> None:
    recent_pairs.save_last(str(zoo["parrot"]), "none")
    with LLM(threads=1) as llm:
        assert llm.generate("a", max_tokens=2).model == "parrot.gguf"
        notice = llm.notices[0]
    assert (
        notice.code == "default-model"
        and "parrot.gguf, the last one used" in notice.message
    )


def test_a_chat_model_is_asked_as_the_command_asks_it(load: Load, zoo: Zoo) -> None:
    llm = load("chatty", ctx=1024)
    asked = ("-p", "Hi?", "--temperature", "0", "--json", "-q", "--ctx", "1024")
    printed = localspec("run", zoo["chatty"], *asked).document
    answer = llm.generate("Hi?", temperature=0)
    assert answer.text == printed["text"] == CHAT_TEXT
    assert answer.prompt_tokens == printed["prompt_tokens"] == llm.count("Hi?")
    raw = llm.generate("Hi?", raw=True, max_tokens=3, temperature=0)
    assert raw.prompt_tokens == llm.count("Hi?", raw=True) < llm.count("Hi?")


def test_a_chat_goes_on_and_reads_only_what_is_new(load: Load) -> None:
    llm = load("chatty", ctx=1024)
    for messages in ("Hi?", HI, [ChatMessage("user", "Hi?")]):
        answer = llm.chat(messages, temperature=0)
        assert (answer.text, answer.finish_reason) == (CHAT_TEXT, "eog")
    turns = [{"role": "system", "content": "Be kind."}, *HI]
    first = llm.chat(turns, temperature=0)
    turns += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "More?"},
    ]
    second = llm.chat(turns, temperature=0)
    assert second.prompt_tokens == llm.count(turns) > first.prompt_tokens
    assert second.reused_tokens >= first.prompt_tokens - 1
    stream = llm.chat(HI, stream=True, temperature=0)
    assert_type(stream, Stream)
    assert "".join(map(str, stream)) == CHAT_TEXT
    assert "".join(piece.text for piece in llm.stream(HI, temperature=0)) == CHAT_TEXT


def test_thinking_notices_and_templates(load: Load) -> None:
    answer = load("thinker", ctx=1024).chat("Hi?", temperature=0)
    assert (answer.text, answer.said) == (THOUGHT_TEXT, "Hello there.")
    turns = [{"role": "system", "content": "Be kind."}, *HI]
    answer = load("no-system", ctx=1024).chat(turns, temperature=0)
    assert "template-roles" in [notice.code for notice in answer.notices]
    with pytest.raises(errors.UsageError, match="has no thinking"):
        load("no-system", ctx=1024).chat("Hi?", think=True)
    answer = load("parrot", template="chatml").chat("Hi?", temperature=0, max_tokens=20)
    assert answer.prompt_tokens > 10


def test_a_model_that_is_missing_or_wrong_is_a_typed_refusal(
    zoo: Zoo, tmp_path: Path
) -> None:
    with pytest.raises(errors.NotFoundError) as missing:
        LLM("qwen3-8b")
    assert missing.value.hint.startswith("Get it: localspec pull qwen3-8b")
    assert "pull=True" in missing.value.hint
    with pytest.raises(errors.IncompatiblePairError, match="token 257") as unlike:
        LLM(str(zoo["target"]), str(zoo["renamed"]))
    assert 'or draft="none" (' in unlike.value.hint
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    with pytest.raises(errors.ModelFileError):
        LLM(str(notes))


def test_an_answer_that_fails_keeps_what_was_said(load: Load) -> None:
    llm = load("parrot")
    with pytest.raises(LocalspecError) as long:
        llm.generate("z" * 2000)
    assert isinstance(long.value, errors.PromptTooLongError)
    assert llm.generate("a", temperature=0).text == HELLO_TEXT

    async def await_answers() -> None:
        with pytest.raises(errors.EngineError) as failure:
            await load("nan-later").agenerate("a", temperature=0)
        assert failure.value.said
        with pytest.raises(errors.EngineError):
            async for _ in load("nan-later").astream("a", temperature=0):
                pass

    run(await_answers)
    stream = load("nan-later").stream("a", temperature=0)
    for read in (lambda: list(stream), lambda: next(stream), lambda: stream.answer):
        with pytest.raises(errors.EngineError) as failure:
            read()
        assert failure.value.said and HELLO_TEXT.startswith(failure.value.said)


def test_what_was_measured_is_kept(zoo: Zoo, tmp_path: Path) -> None:
    """A pair is probed only once; answers add to its measurements."""
    store = measurements.MeasurementStore(tmp_path / "data" / "measured.sqlite")
    pair = zoo["target"], zoo["cousin"]
    with LLM(*pair, ctx=512, threads=1) as first:
        (probed,) = store.read_all()
        for n in range(3):
            first.generate(f"a{n}", max_tokens=8)
    (taught,) = store.read_all()
    with LLM(*pair, ctx=512, threads=1) as second:
        (before,) = store.read_all()
        assert before.measured == taught.measured, "not measured again"
        second.generate("a", max_tokens=8)
    (kept,) = store.read_all()
    assert probed.key == taught.key == kept.key
    assert probed.measured != taught.measured != kept.measured


def test_a_closed_engine(load: Load) -> None:
    llm = load("parrot")
    assert repr(llm).endswith("model='parrot.gguf', draft=None, ctx=512)")
    assert llm.ready.settings["target"]["n_ctx"] == 512
    assert "settings" in [notice.code for notice in llm.notices]
    with llm as same:
        assert same is llm and not llm.closed
    assert llm.closed and repr(llm).endswith(", closed)")
    with pytest.raises(errors.UsageError, match="This LLM is closed"):
        llm.generate("a")
    llm.close()


def test_pieces_are_the_answer(load: Load) -> None:
    stream = load("parrot", "parrot", spec="model").stream("a", temperature=0)
    gc.collect()
    pieces = list(stream)
    assert_type(pieces, list[Piece])
    assert "".join(map(str, pieces)) == stream.answer.text == HELLO_TEXT
    assert tuple(piece.token for piece in pieces) == stream.answer.tokens
    assert [piece.kind for piece in pieces] == [
        token.kind for token in stream.answer.tokens
    ]
    assert list(stream) == [], "it is at its end"
    held = load("parrot").stream("a", temperature=0, stop="! never", max_tokens=5)
    pieces = list(held)
    assert "".join(map(str, pieces)) == held.answer.text == " Hello, world!"
    assert (pieces[-1].text, pieces[-1].token, pieces[-1].kind) == ("!", None, None)


def test_leaving_early_stops_the_engine(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    with llm.stream("a", temperature=0, max_tokens=LONG) as stream:
        said = "".join(piece.text for piece in itertools.islice(stream, 4))
    assert said == " one two three four"
    answer = stream.answer
    assert answer.finish_reason == "cancelled" and answer.text.startswith(said)
    assert 4 <= len(answer.tokens) < LONG and list(stream) == []
    for piece in llm.stream("a", temperature=0, max_tokens=LONG):
        assert piece.text == " one"
        break
    gc.collect()
    assert few(llm) == ["one", "two", "three"]


def test_stop_lets_the_written_pieces_through(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    stream = llm.stream("a", temperature=0, max_tokens=LONG)
    first = next(stream)
    stream.stop()
    assert first.text + "".join(map(str, stream)) == stream.answer.text
    assert stream.answer.finish_reason == "cancelled"
    stream = llm.stream("a", temperature=0, max_tokens=LONG)
    next(stream)
    other = threading.Thread(target=llm.stop)
    other.start()
    assert stream.answer.finish_reason == "cancelled"
    other.join()
    llm.stop()  # no effect: there is nothing to stop
    assert few(llm) == ["one", "two", "three"]


def test_a_stream_closed_before_its_turn_says_nothing(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    first = llm.stream("a", temperature=0, max_tokens=LONG)
    next(first)
    second = llm.stream("a", temperature=0, max_tokens=LONG)
    second.close()
    first.close()
    answer = second.answer
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", (), "cancelled")
    assert answer.speculation["acceptance_rate"] is None
    assert answer.document().keys() == first.answer.document().keys()
    assert answer.timings.keys() == first.answer.timings.keys()
    assert answer.speculation.keys() == first.answer.speculation.keys()
    assert few(llm) == ["one", "two", "three"]


def test_threads_take_turns(load: Load) -> None:
    """Several threads get the same answers as one, from several engines with open
    streams.
    """
    engines = [load("target"), load("target", "cousin"), load("demo")]
    alone = [answers(llm) for llm in engines]
    assert len(set(alone[0].values())) > 1
    open_ = [llm.stream("b", seed=1, max_tokens=30) for llm in engines]
    for stream in open_:
        next(stream)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answers, engines * 2)) == alone * 2
    for stream in open_:
        assert (
            "".join(map(str, stream))
            == stream.answer.text[len(stream.answer.tokens[0].text) :]
        )


def test_in_a_notebook(zoo: Zoo) -> None:
    """A cell runs in the thread of a running event loop, which it blocks."""

    async def cell() -> None:
        with LLM(zoo["parrot"], spec="lookup", ctx=512, threads=1) as llm:
            assert llm.generate("a", temperature=0).text == HELLO_TEXT
            assert "".join(map(str, llm.stream("a", temperature=0))) == HELLO_TEXT

    asyncio.run(cell())


def test_awaited_answers_let_the_loop_go_on(load: Load) -> None:
    llm = load("target", "cousin")
    chatter = load("chatter", ctx=2048)
    chatty = load("chatty", ctx=1024)
    alone = answers(load("target", "cousin"))

    async def read(count: int) -> list[str]:
        found: list[str] = []
        async for piece in chatter.astream("a", temperature=0, max_tokens=count):
            assert_type(piece, Piece)
            found.append(piece.text)
        return found

    async def work() -> None:
        asked = [llm.agenerate(prompt, seed=3, max_tokens=12) for prompt in PROMPTS]
        said = await asyncio.gather(*asked)
        assert_type(said, list[Answer])
        assert [answer.text for answer in said] == list(alone.values())
        assert (await chatty.achat("Hi?", temperature=0)).text == CHAT_TEXT
        both = await asyncio.gather(read(300), read(5))
        assert [len(found) for found in both] == [300, 5] and both[1] == both[0][:5]

    run(work)


def test_a_task_that_is_cancelled_or_left_ends_its_answer(load: Load) -> None:
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
        pieces = llm.astream("a", temperature=0, max_tokens=LONG)
        async for _ in pieces:
            break
        await pieces.aclose()
        assert (
            await llm.agenerate("a", temperature=0, max_tokens=2)
        ).text == " one two"

    run(work)
