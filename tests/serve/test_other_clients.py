"""Clients that are programs: `llm`, litellm as aider calls it, and llama.cpp's own
tests.

They are looked for in the virtual environment LOCALSPEC_TEST_CLIENTS, else in that of
the tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Served, serving
from tests.serve.llama_server_suite import run_suite
from tests.support.zoo import CHAT_TEXT, RESULT_TEXT, Zoo

CLIENTS = Path(os.environ.get("LOCALSPEC_TEST_CLIENTS", sys.prefix))
PROGRAMS = CLIENTS / ("Scripts" if sys.platform == "win32" else "bin")


def needs(package: str) -> pytest.MarkDecorator:
    found = any(CLIENTS.glob(f"[Ll]ib/**/site-packages/{package}/__init__.py"))
    return pytest.mark.skipif(not found, reason=f"{package} is not installed")


def run_client(folder: Path, *words: str, given: Any = None) -> tuple[str, str]:
    """What a client prints on both streams."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    environment |= {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "any"}
    done = subprocess.run(
        [PROGRAMS / words[0], *words[1:]],
        input=json.dumps(given),
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def ask_llm(served: Served, folder: Path, *words: str) -> tuple[str, str]:
    """With the entry of docs/serve.md in its extra-openai-models.yaml."""
    (name,) = [model["id"] for model in served.get("/v1/models").json["data"]]
    entry = {
        "model_id": "localspec",
        "model_name": name,
        "api_base": f"{served.url}/v1",
    }
    entry |= {"supports_schema": True, "supports_tools": True}
    (folder / "extra-openai-models.yaml").write_text(f"- {json.dumps(entry)}\n")
    return run_client(folder, "llm", "-m", "localspec", *words)


@needs("llm")
@pytest.mark.long
def test_llm(chatty: Served, tmp_path: Path) -> None:
    assert ask_llm(chatty, tmp_path, "Hi?")[0] == CHAT_TEXT.strip()
    assert ask_llm(chatty, tmp_path, "Hi?", "--no-stream")[0] == CHAT_TEXT.strip()
    n_before = len(chatty.ended)
    assert ask_llm(chatty, tmp_path, "-c", "More?", "-u")[0] == CHAT_TEXT.strip()
    assert chatty.ended[n_before].reused_tokens > 20, (
        "the conversation goes on where it was"
    )
    options = ("-u", "-o", "max_tokens", "4", "-o", "seed", "7")
    assert "4 output" in ask_llm(chatty, tmp_path, "Hi?", *options)[1]
    shaped, _ = ask_llm(chatty, tmp_path, "--schema", "ok bool", "Hi?")
    assert json.loads(shaped).keys() == {"ok"}


WEATHER = """
def weather(city: str) -> str:
    "The weather of a city"
    return f"no clouds over {city}"
"""


@needs("llm")
@pytest.mark.long
@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_llm_calls_a_tool(how: tuple[str, ...], zoo: Zoo, tmp_path: Path) -> None:
    with serving(zoo["agent"]) as served:
        text, log = ask_llm(
            served, tmp_path, "--functions", WEATHER, "--td", "Hi?", *how
        )
    assert (
        text.split() == ["I", "look.", *RESULT_TEXT.split()]
        and "no clouds over Rome" in log
    )
    assert served.ended[1].reused_tokens > 20, "the conversation goes on where it was"


AIDER = """
import json, sys, litellm
given = json.load(sys.stdin)
say = {"role": "user", "content": "Hi?"}
base = {"model": "openai/chatty", "api_base": given["base"], "num_retries": 0, "timeout": 600}
chat = [{"role": "system", "content": "Act as an expert."}, say]
chat += [{"role": "assistant", "content": "Ok."}, say]
result = {}
stream = litellm.completion(messages=chat, stream=True, temperature=0, **base)
result["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
whole = litellm.completion(messages=chat, stream=False, temperature=0, **base)
result["whole"] = whole.choices[0].message.content
result["finish"] = whole.choices[0].finish_reason
result["tokens"] = whole.usage.completion_tokens
try:
    litellm.completion(messages=[{"role": "user", "content": "word " * 3000}], **base)
except litellm.ContextWindowExceededError:
    result["long"] = True
json.dump(result, sys.stdout)
"""
"""The calls of aider's `models.py`: the context error is how it learns to send less."""


@needs("litellm")
@pytest.mark.long
def test_litellm_as_aider_calls_it(chatty: Served, tmp_path: Path) -> None:
    printed, _ = run_client(
        tmp_path, "python", "-c", AIDER, given={"base": f"{chatty.url}/v1"}
    )
    result = json.loads(printed.splitlines()[-1])
    assert result["streamed"] == result["whole"] == CHAT_TEXT
    assert (result["finish"], result.get("long")) == ("stop", True) and result[
        "tokens"
    ] > 20


CHECKOUT = os.environ.get("LLAMA_CPP_CHECKOUT", "")


@pytest.mark.skipif(
    not CHECKOUT, reason="LLAMA_CPP_CHECKOUT names no source tree of llama.cpp"
)
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_llama_cpps_own_tests_of_its_server() -> None:
    """All pass but those whose reasons the suite names."""
    n_passed, unexpected = run_suite(Path(CHECKOUT), PROGRAMS / "python")
    assert n_passed > 60 and unexpected == {}
