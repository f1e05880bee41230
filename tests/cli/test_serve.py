"""`localspec serve` as a process: its start, its log, its end, and what it refuses."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.cli.serve import _read_keys
from tests.support.run_command import command, environment, localspec
from tests.support.zoo import HELLO_TEXT, Zoo


@contextmanager
def started(
    *arguments: str | Path,
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and what it has printed, after its model has loaded."""
    words = ("serve", *arguments, "--port", "0", "--ctx", "512", "--threads", "1")
    process = subprocess.Popen(
        command(*words), env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines: list[str] = []
        url = ""
        for line in process.stderr:
            lines.append(line)
            found = re.search(r"serving .+ at (http\S+)/v1", line)
            if found is not None:
                url = found[1]
            if "ctrl+c" in line:
                break
        assert url, lines
        yield process, url, lines
    finally:
        process.kill()
        process.wait()
        process.communicate()


def ask(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_server_answers_logs_and_ends(zoo: Zoo) -> None:
    options = ("--log", "json", "--temperature", "0", "--alias", "bird")
    with started(zoo["parrot"], *options) as (process, url, _):
        answer = ask(url, {"prompt": "a secret"})
        assert answer["model"] == "bird"
        assert answer["choices"][0]["text"] == HELLO_TEXT  # --temperature 0 applies
        assert process.stderr is not None
        line = process.stderr.readline()
        logged = json.loads(line)
        assert (logged["route"], logged["status"]) == ("/v1/completions", 200)
        assert logged["tokens"] == answer["usage"]["completion_tokens"]
        assert "secret" not in line and str(zoo.folder) not in line
        process.send_signal(signal.SIGINT)
        assert (
            process.wait(timeout=30) == 0 and "Traceback" not in process.stderr.read()
        )


def test_what_is_named_or_installed_is_served(zoo: Zoo) -> None:
    both = str(zoo["parrot"]), str(zoo["chatter"])
    options = ("--installed", "--log", "none", "--temperature", "0")
    with started(*both, *options) as (_, url, lines):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
            names = [model["id"] for model in json.load(response)["data"]]
        assert (
            ask(url, {"prompt": "import os", "model": "demo+eagle3"})["model"]
            == "demo+eagle3"
        )
        for model, text in zip(both, (HELLO_TEXT, " one two"), strict=True):
            answer = ask(url, {"prompt": "a", "model": model, "max_tokens": 20})
            assert answer["model"] == model and answer["choices"][0]["text"].startswith(
                text
            )
    assert tuple(names[:2]) == both
    assert not [name for name in names[2:] if Path(name).is_absolute()], lines
    refused = localspec("serve", *both, "--alias", "bird")
    assert refused.code == 2 and "--alias and --draft are for one model" in refused.err


def test_what_it_refuses(zoo: Zoo, tmp_path: Path) -> None:
    model = zoo["parrot"]
    opened = localspec("serve", model, "--host", "0.0.0.0")
    assert opened.code == 2 and "--api-key-file" in opened.err
    keys = tmp_path / "keys"
    keys.write_text("\n \n")
    assert localspec("serve", model, "--api-key-file", keys).code == 2
    assert localspec("serve", model, "--api-key-file", tmp_path / "none").code == 8
    keys.write_text("#\n" * 40_000 + "key")
    assert localspec("serve", model, "--api-key-file", keys).code == 8, "no key is cut"
    keys.write_bytes(b"\xef\xbb\xbfkey\n  spaced key \n")
    assert _read_keys(str(keys)) == ("key", "spaced key")
    assert localspec("serve", tmp_path / "none.gguf").code == 3
    elsewhere = localspec(
        "serve", model, "--host", "192.0.2.1", env={"LOCALSPEC_API_KEY": "k"}
    )
    assert (
        elsewhere.code == 2
        and "cannot listen" in elsewhere.err
        and "--host" in elsewhere.err
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        taken = localspec("serve", model, "--port", port)
    assert (
        taken.code == 2
        and taken.err.splitlines()[1] == "  Add --port 0: a free port is chosen."
    )
    damaged = localspec("serve", zoo["vocabulary-only"], "--port", "0")
    assert damaged.code not in (0, 1)
