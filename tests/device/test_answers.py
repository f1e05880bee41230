"""Doctor, answers, heads, refusals and the app on a real device.

A software device compiles its programs at the first pass of each width, which takes
minutes: few widths, short answers.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localspec.machine.device import Device
from localspec.paths import package_data_dir
from tests.support import tmux
from tests.support.run_command import Done, command, environment

SECONDS = 1500
pytestmark = pytest.mark.timeout(SECONDS)
PROMPT = "if __name__ =="
"""In its greedy answer no token is nearly as likely as another.

So passes of other widths, which round differently, give the same answer.
"""
GREEDY = (
    *("-p", PROMPT),
    *("--temperature", "0"),
    *("--max-tokens", "16"),
    *("--draft-max", "3"),
    "--json",
)
QUIET = ("--ctx", "1024", "--exact", "off")
EAGLE = package_data_dir() / "demo" / "demo-eagle3.gguf"


def localspec(*words: str, **env: str) -> Done:
    done = subprocess.run(
        command(*words),
        env=environment(env),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def answer(*words: str) -> dict[str, Any]:
    done = localspec("run", "demo", *GREEDY, *QUIET, *words)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.document
    return found


@pytest.fixture(scope="module")
def plain(gpu: Device) -> str:
    text: str = answer("--spec", "off")["text"]
    assert len(text) > 10
    return text


def test_doctor_shows_it(gpu: Device) -> None:
    text = localspec("doctor").text
    assert gpu.name in text and gpu.description in text
    assert "can use a GPU" in text


@pytest.mark.parametrize(
    "words",
    [
        ("--spec", "model"),
        ("--spec", "model", "--draft-gpu-layers", "0"),
        ("--spec", "model", "--gpu-layers", "3"),
        ("--spec", "eagle3", "--draft", str(EAGLE)),
    ],
    ids=["all there", "the draft here", "3 layers there", "a head"],
)
def test_speculation_gives_the_same_greedy_text(
    plain: str, words: tuple[str, ...]
) -> None:
    assert answer(*words)["text"] == plain


def test_a_driver_that_fails_is_said(gpu: Device) -> None:
    if gpu.backend != "Vulkan":
        pytest.skip("Vulkan's variable")
    broken = {
        "VK_ICD_FILENAMES": "/nowhere/icd.json",
        "VK_DRIVER_FILES": "/nowhere/icd.json",
    }
    done = localspec("run", "demo", *GREEDY[:-1], *QUIET, "--spec", "off", **broken)
    assert done.code == 0
    assert "finds no such device" in done.err
    assert "finds no such device" in localspec("doctor", **broken).text


def test_memory_that_runs_out_is_said_with_what_helps(gpu: Device) -> None:
    if gpu.backend != "Vulkan":
        pytest.skip("Vulkan's variable")
    done = localspec(
        "run", "demo", *GREEDY, *QUIET, GGML_VK_FORCE_MAX_BUFFER_SIZE="65536"
    )
    assert done.code == 11, done.out
    assert "--gpu-layers" in done.document["error"]["hint"]


def test_what_the_device_cannot_do_is_not_blamed_on_the_file(gpu: Device) -> None:
    for words in (("--main-gpu", "5", "--split", "none"), ("--split", "row")):
        done = localspec("run", "demo", *GREEDY, *QUIET, *words)
        if done.code == 0 and gpu.backend == "CUDA":
            continue  # it splits rows
        assert done.code == 2, done.out
        assert "Download" not in json.dumps(done.document)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_the_app_names_it_and_answers(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmux, "LIMIT", float(SECONDS) / 2)
    with tmux.Tmux((110, 30), tmp_path) as shell:
        shell.run()
        shell.wait_for("Ready to run")
        shell.wait_for(gpu.description.split(" (")[0])
        shell.press(tmux.ENTER)
        shell.wait_for("ctx")
        shell.type(PROMPT)
        shell.press(tmux.ENTER)
        shell.wait_for("first token")
        shell.press("C-q")
