"""How engines end: with their script, by garbage collection, by Ctrl+C, or by a crash."""

import os
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from localspec import LLM, errors
from localspec.launch import EngineClient
from tests.api.conftest import LONG, Load
from tests.engine_process.ends import ended
from tests.support.downloads import wait_for
from tests.support.run_command import finish
from tests.support.zoo import HELLO_TEXT, Zoo

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
BEGIN = """\
import atexit, gc, os, signal, sys, threading, time
import psutil

@atexit.register  # before localspec's own, so that it runs after it
def nothing_is_left():
    if engines():
        print("an engine outlives its script", file=sys.stderr)

from localspec import LLM, errors

def is_engine(child):
    try:
        return "localspec.engine" in child.cmdline()
    except psutil.Error:  # exited since it was listed
        return False

def engines():
    return [child for child in psutil.Process().children() if is_engine(child)]

def open_(name, **options):
    llm = LLM(name, ctx=60000, threads=1, **options)
    print(*(child.pid for child in engines()), flush=True)
    return llm

def interrupt_when(condition):
    def wait():
        while not condition():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()

def busy(llm):
    job = llm._engine_host._current_job
    return bool(said) or (job is not None and bool(job._outputs))

said = []
"""

FAILED = "a failed load"
ENDS = {
    "a left loop": f"for p in open_(model).stream('a', max_tokens={LONG}): break",
    "a fork": """\
llm = open_(model)
s = llm.stream('a', max_tokens=40)
if (pid := os.fork()) == 0:
    try:
        llm.generate('a')
    except errors.UsageError:
        s.close(); llm.close(); del s, llm; gc.collect()
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert len(s.answer.tokens) == 40, 'the copy is not the owner'""",
    "garbage in a circle": """\
llm = open_(model)
llm.me = [llm]
s = llm.stream('a', max_tokens=60000); s.me = s; next(s)
del llm, s
while engines():
    gc.collect(); time.sleep(0.01)""",
    FAILED: """\
try:
    LLM(model)
except errors.ModelFileError:
    pass
assert not engines()""",
}


def script(body: str, model: Path) -> str:
    """What a script prints, with warnings as errors."""
    code = f"{BEGIN}\nmodel = {str(model)!r}\n{body}\n"
    done = finish([sys.executable, "-X", "dev", "-W", "error", "-P", "-c", code])
    assert (done.code, done.err) == (0, "")
    return done.text


@pytest.mark.parametrize("end", ENDS)
def test_engines_end_quietly(end: str, zoo: Zoo) -> None:
    if end == "a fork" and not hasattr(os, "fork"):
        pytest.skip("no fork there")
    printed = script(ENDS[end], zoo["no-tokenizer" if end == FAILED else "chatter"])
    assert (end == FAILED) == (not printed)
    for pid in printed.split():
        assert ended(int(pid))


@posix
def test_an_interrupt_ends_the_answer_and_leaves_the_engine_well(zoo: Zoo) -> None:
    body = f"""\
llm = open_(model, template='chatml')
before = engines()
def read():
    for piece in llm.stream('a', temperature=0, max_tokens={LONG}): said.append(piece)
for answer in (lambda: llm.generate('a', temperature=0, max_tokens={LONG}), read):
    interrupt_when(lambda: busy(llm))
    try:
        answer()
    except KeyboardInterrupt:
        print('interrupted')
    print(llm.generate('a', temperature=0, max_tokens=3, raw=True))
assert engines() == before
"""
    printed = script(body, zoo["chatter"]).splitlines()
    assert printed[1:] == ["interrupted", " one two three"] * 2


@posix
def test_an_interrupt_while_it_loads(zoo: Zoo) -> None:
    body = """\
interrupt_when(engines)
try:
    open_(model)
except KeyboardInterrupt:
    print('interrupted')
while engines():
    time.sleep(0.01)
"""
    assert script(body, zoo["chatter"]) == "interrupted\n"


def engine_of(llm: LLM) -> psutil.Process:
    held = llm._engine_host.engine
    assert isinstance(held, EngineClient)
    return psutil.Process(held.pid)


@posix
def test_an_engine_dies(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    stream = llm.stream("a", temperature=0, max_tokens=LONG)
    first = next(stream)
    dying = engine_of(llm)
    dying.kill()
    with pytest.raises(errors.OutOfMemoryError, match="The engine stopped") as failure:
        for _ in stream:
            pass
    assert failure.value.said.startswith(first.text) and failure.value.hint
    answer = llm.generate("a", temperature=0, max_tokens=3)
    assert answer.text == " one two three"
    assert "loaded-again" in [notice.code for notice in answer.notices]
    assert engine_of(llm).pid != dying.pid and ended(dying.pid)
    assert not llm.generate("a", temperature=0, max_tokens=3).notices


@posix
def test_what_cannot_be_loaded_again_is_told_until_it_can(
    zoo: Zoo, tmp_path: Path
) -> None:
    model = Path(shutil.copy(zoo["parrot"], tmp_path / "model.gguf"))
    with LLM(str(model), ctx=512, threads=1) as llm:
        engine = llm._engine_host.engine
        assert engine is not None
        engine_of(llm).kill()
        wait_for(lambda: not engine.alive)
        away = model.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(errors.LocalspecError) as failure:
                llm.generate("a")
            assert failure.value.hint
        assert repr(llm)
        os.replace(away, model)
        assert llm.generate("a", temperature=0).text == HELLO_TEXT


@posix
@pytest.mark.parametrize("is_suspended", [False, True])
def test_closing_does_not_wait_for_an_engine_that_is_busy(
    load: Load, is_suspended: bool
) -> None:
    llm = load("chatter", ctx=LONG)
    stream = llm.stream("a", max_tokens=LONG)
    next(stream)
    waiting = llm.stream("a", max_tokens=LONG)
    process = engine_of(llm)
    if is_suspended:
        process.suspend()
    llm.close()
    assert ended(process.pid) and not llm._engine_host._thread.is_alive()
    for each in (stream, waiting) if is_suspended else (waiting,):
        with pytest.raises(errors.UsageError, match="This LLM is closed"):
            each.answer  # noqa: B018
    assert is_suspended or stream.answer.finish_reason == "cancelled"
