"""A hostile template costs at most its time limit, and the chat goes on by a fallback."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from localspec.models.chat_template import jinja_render, render_process
from localspec.models.chat_template.render_process import TemplateRenderer
from localspec.protocol.wire import ChatMessage, RenderResult
from tests.worker.ends import gone
from tests.zoo import Zoo

CHAT = (
    ChatMessage("user", "Hi 漢字 \ud800"),
    ChatMessage("assistant", "Hello"),
    ChatMessage("user", "More"),
)
TOKENS = {"bos_token": "<s>"}
FINE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
SLOW = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LIMIT = 2.0

Make = Callable[..., TemplateRenderer]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[TemplateRenderer] = []

    def start(source: str, **limits: float) -> TemplateRenderer:
        made.append(TemplateRenderer(source, TOKENS, **limits))
        return made[-1]

    yield start
    for each in made:
        each.close()
        assert each._process is None


def pid(renderer: TemplateRenderer) -> int:
    assert renderer._process is not None
    return renderer._process.pid


def told(rendered: RenderResult) -> str:
    assert rendered.template == "chatml"
    assert [notice.code for notice in rendered.notices] == ["template-fallback"]
    return rendered.notices[0].message


def test_what_comes_from_the_process_is_what_the_template_makes(make: Make) -> None:
    there = make(FINE)
    assert there.render(CHAT) == jinja_render.render(FINE, CHAT, TOKENS)
    first = pid(there)
    assert there.render(CHAT[:1], enable_thinking=True).text == "<s>[user]Hi 漢字 \ud800"
    assert pid(there) == first, "it is kept"


def test_the_child_of_a_model_with_a_template_starts_before_its_renderer(
    make: Make, zoo: Zoo, tmp_path: Path
) -> None:
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    before = children()
    for path in (zoo["f32"], tmp_path / "gone.gguf", tmp_path):  # without a template, or no file
        render_process.start_early(path)
    assert children() == before
    for _ in range(2):
        render_process.start_early(zoo["chatty"])
    (early,) = children() - before
    assert pid(make(FINE)) == early
    assert make(FINE).render(CHAT) == jinja_render.render(FINE, CHAT, TOKENS)


def test_notices_come_along(make: Make) -> None:
    refusing = FINE + "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    rendered = make(refusing).render((ChatMessage("system", "Be brief."), *CHAT))
    assert [notice.code for notice in rendered.notices] == ["template-roles"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**12 }}",
        "{{ (['x' * 1000] * 99999) | join('y' * 999) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
        SLOW,
        "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
        "{% set n.l = n.l + [n.l] %}{% endfor %}",
        "{% for i in range(10) %}{{ (9 ** 9 ** 9) ** (9 ** 9) }}{% endfor %}",
    ],
    ids=lambda source: source[:24],
)
def test_a_hostile_template_is_cut_off(make: Make, source: str) -> None:
    """Nothing slow is waited for longer than the limit; nothing large is ever held."""
    hostile = make(source)
    make(FINE).render(CHAT)  # when a second process has rendered, the first has long been ready
    began = time.perf_counter()
    rendered = hostile.render(CHAT)
    waited = time.perf_counter() - began
    assert "the model's chat template" in told(rendered).lower()
    assert rendered.text.startswith("<|im_start|>user\nHi")
    assert waited < 5 * LIMIT, "a busy machine is slower, a hostile template is endless"
    again = hostile.render(CHAT)
    assert again.text == rendered.text


def test_a_template_that_was_too_slow_is_not_tried_again(make: Make) -> None:
    hostile = make(SLOW, timeout=0.2)
    process = pid(hostile)
    assert "took longer than 0.2 s" in told(hostile.render(CHAT))
    assert gone(process)
    assert hostile._process is None
    assert "took longer than 0.2 s" in told(hostile.render(CHAT)), "at once, without a process"


def test_a_process_that_somebody_killed_is_started_again(make: Make) -> None:
    there = make(FINE)
    expected = there.render(CHAT)
    os.kill(pid(there), getattr(signal, "SIGKILL", signal.SIGTERM))
    assert there.render(CHAT) == expected


@pytest.mark.parametrize(
    "code",
    [
        "print('ready', flush=True)",
        "print('ready\\nnonsense', flush=True)",
        "print('hello', flush=True)",
        "raise SystemExit(3)",
    ],
)
def test_a_process_that_keeps_ending_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(render_process, "_command", lambda: [sys.executable, "-c", code])
    assert "chat template crashed" in told(make(FINE).render(CHAT))


def test_a_process_that_never_gets_ready_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        render_process, "_command", lambda: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    assert "its process does not start" in told(make(FINE, start_timeout=0.2).render(CHAT))


def test_without_a_process_there_is_still_a_fallback(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_process, "_command", lambda: ["/no/such/program"])
    assert "chat template crashed" in told(make(FINE).render(CHAT))


def test_it_ends_with_its_stdin(make: Make) -> None:
    there = make(FINE)
    there.render(CHAT)
    assert there._process is not None
    assert there._process.stdin is not None
    there._process.stdin.close()
    assert there._process.wait(timeout=10) == 0
