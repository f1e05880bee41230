"""The published files: template, end token, head, memory, `verify`; and planted faults."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import gguf
import pytest

from localspec.engine_process.client import EngineProcess
from localspec.machine import memory_probe
from localspec.machine.device import HOST
from localspec.models.gguf import reader
from localspec.protocol.wire import LoadCommand
from tests.real import checks
from tests.real.conftest import ROOMY
from tests.support import shapes
from tests.support.run_command import command, environment

pytestmark = pytest.mark.long


def test_its_template_and_its_end_token(smollm: Path) -> None:
    checks.check_template(smollm)
    checks.check_end_token(smollm)


def test_the_bundled_head_is_the_starters(smollm: Path, head: Path) -> None:
    checks.check_head(smollm, head)


# --- planted faults ---------------------------------------------------------------------------


def planted(folder: Path, source: Path, key: str, old: bytes | int, new: bytes | int) -> Path:
    """A copy of the file with a part of a value replaced in place."""
    path = Path(shutil.copy(source, folder / f"{len(list(folder.iterdir()))}.gguf"))
    field = gguf.GGUFReader(path, "r+").fields[key]
    for index in field.data:
        part = field.parts[index]
        if isinstance(old, int):
            part[part == old] = new
        else:
            assert isinstance(new, bytes) and len(new) == len(old) and old in part.tobytes()
            part[:] = bytearray(part.tobytes().replace(old, new, 1))
    return path


def test_planted_faults_are_noticed(smollm: Path, head: Path, tmp_path: Path) -> None:
    """A wrong end token, a newline more or less in the template, a head for other layers."""
    with pytest.raises(AssertionError):
        checks.check_end_token(planted(tmp_path, smollm, "tokenizer.ggml.eos_token_id", 2, 0))
    for old, new in ((b"'\n' + ", b"'\n\n'+ "), (b"'\n'", b"'' ")):
        wrong = planted(tmp_path, smollm, "tokenizer.chat_template", old, new)
        with pytest.raises(AssertionError):
            checks.check_template(wrong)
    wrong = planted(tmp_path, head, "eagle3.target_layers", 29, 20)
    with pytest.raises(AssertionError, match="of"):
        checks.check_head(smollm, wrong)


# --- memory and verify ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixture", "with_head", "error"),
    [("smollm", False, 0.01), ("smollm", True, 0.01), ("gemma", False, 0.04)],
)
def test_memory_is_what_was_foretold(
    fixture: str, with_head: bool, error: float, head: Path, request: pytest.FixtureRequest
) -> None:
    """By llama.cpp's count; without it, within the error of the estimate."""
    path: Path = request.getfixturevalue(fixture)
    load = LoadCommand(str(path), str(head) if with_head else None, ROOMY, ROOMY)
    target, draft = reader.read(path), reader.read(head) if with_head else None
    estimate = shapes.estimate_pair(load, target, draft, [])
    buffers = memory_probe.count_buffers(load, target, draft)
    counted = shapes.replace_counted(estimate, load, (target, draft), buffers)
    engine = EngineProcess()
    try:
        used = engine.load(load).memory["used"]
    finally:
        engine.close()
    assert used is not None
    foretold = counted.of(HOST).total + counted.output
    assert abs(foretold / used - 1) <= error, (foretold, used)
    assert abs(estimate.of(HOST).total + estimate.output - used) <= estimate.error


def test_verify_finds_no_difference(smollm: Path, head: Path) -> None:
    """Its part `sampled` is a chi-square test of the tokens drawn with each verifier."""
    effort = ("--seconds", "0", "--tokens", "8", "--threads", "1", "--json", "-q")
    words = command("verify", smollm, "--draft", head, *effort)
    done = subprocess.run(words, capture_output=True, env=environment(), check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert found["verdict"] == "lossless"
    assert found["sampled"]["p"] > 1e-3
