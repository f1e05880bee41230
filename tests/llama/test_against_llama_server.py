"""Greedy texts after pictures, beside those of llama.cpp's own server.

`LLAMA_SERVER` names a `llama-server` of the same build, which uses the libraries that
localspec loads: otherwise near-ties part after some tokens. Without it the tests are
skipped.
"""

import base64
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec import child_process
from tests.support.long_cases import LONG
from tests.support.picture_prompts import PICTURE_SETTINGS, PICTURES, Part
from tests.support.picture_sessions import seeing_session
from tests.support.vision_models import KINDS, VisionFiles, VisionModels, png

PROGRAM = os.environ.get("LLAMA_SERVER", "")
MARKER = "<__media__>"
N_TOKENS = 60
QUESTIONS = (" what is it?", " tell me the colours", " the one")
SPECS = ("off", "lookup")

pytestmark = [
    *LONG,
    pytest.mark.skipif(not PROGRAM, reason="LLAMA_SERVER names no llama-server"),
]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


@contextmanager
def llama_server(files: VisionFiles, log: Path, max_rows: int | None) -> Iterator[int]:
    """Yields its port. A limit of rows changes how some kinds cut their pictures."""
    port = _free_port()
    command = [PROGRAM, "-m", str(files.model), "--mmproj", str(files.projector)]
    command += ["--port", str(port), "--host", "127.0.0.1", "-t", "1", "-c", "1024"]
    command += ["-b", "512", "-ub", "512", "-np", "1", "-fa", "on", "--cache-ram", "0"]
    command += ["--no-warmup", "-fit", "off"]
    if max_rows is not None:
        command += ["--image-max-tokens", str(max_rows)]
    environment = os.environ | {"LLAMA_MEDIA_MARKER": MARKER}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output
        )
        try:
            _wait_for(server, port)
            yield port
        finally:
            child_process.terminate(server, grace_seconds=0)


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(240):
        time.sleep(0.25)
        assert server.poll() is None, "llama-server has ended"
        try:
            _post(port, "/tokenize", {"content": "a"})
        except OSError:
            continue
        return
    raise AssertionError("llama-server did not start")


def _complete(port: int, *parts: Part) -> tuple[list[int], int]:
    """The greedy tokens, and the length of the prompt."""
    text = "".join(part if isinstance(part, str) else MARKER for part in parts)
    pictures = [part for part in parts if not isinstance(part, str)]
    data = [base64.b64encode(png(each.astype(np.uint8))).decode() for each in pictures]
    reply = _post(
        port,
        "/completion",
        {
            "prompt": {"prompt_string": text, "multimodal_data": data},
            "n_predict": N_TOKENS,
            "temperature": 0,
            "samplers": ["temperature"],
            "return_tokens": True,
            "cache_prompt": False,
        },
    )
    return reply["tokens"], reply["tokens_evaluated"]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_llama_server(
    vision_models: VisionModels, kind: str, tmp_path: Path
) -> None:
    """With six kinds 108 prompts: one or two of three pictures, and a question."""
    settings = replace(PICTURE_SETTINGS, n_ubatch=512)
    prompts: list[tuple[Part, ...]] = []
    for question, first in product(QUESTIONS, PICTURES):
        prompts.append(("user: ", first, question))
        prompts.append(("user: ", first, " and ", PICTURES[0], question))
    assert len(prompts) == 18
    log = tmp_path / "server.log"
    with ExitStack() as opened:
        seeing = seeing_session(vision_models, kind, settings=settings)
        session = opened.enter_context(seeing)
        limits = session.model.projector._limits
        max_rows = limits.limit_rows(on_gpu=False, n_batch=settings.n_ubatch)
        server = llama_server(vision_models[kind], log, max_rows)
        port = opened.enter_context(server)
        for parts in prompts:
            prompt = session.prompt(*parts)
            expected, n_prompt = _complete(port, *parts)
            assert len(prompt) == n_prompt
            for spec in SPECS:
                answer = session.answer(prompt, spec, max_tokens=N_TOKENS)
                assert answer.tokens == expected
