"""llama.cpp's own tests of llama-server, run against `localspec serve`.

Their tests start this file in place of llama-server; it turns their options into ours
and serves the demo pair, whatever model they ask for. So tests that expect the words of
their model fail: docs/quality/llama-server.md says which, and why.
"""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion",
    "ignore_eos", "infill", "metrics", "security", "speculative", "tokenize",
)  # fmt: skip
PAGE = ROOT / "docs" / "quality" / "llama-server.md"
EXPECTED = frozenset(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
"""Functions whose failures the page explains."""
DRAFT_FILE = "stories15M-q4_0.gguf"
"""Of the tests of speculation; they download it unless it is in their folder."""

NO_DOWNLOADS = """
def pytest_collection_finish(session):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
"""
"""A plugin of pytest: theirs start a server for each model first, to download it."""

VALUES = {
    "--port": "--port", "--host": "--host", "--temp": "--temperature", "--seed": "--seed",
    "--alias": "--alias", "--spec-draft-n-max": "--draft-max", "--cors-origins": "--allow-origin",
}  # fmt: skip


def serve(given: Sequence[str]) -> None:
    """Become `localspec serve`; options without a counterpart are left out."""
    options = dict(_pair_options(given))
    words = ["serve", "demo", "--log", "none", "--threads", "1"]
    for name, value in options.items():
        if name in VALUES:
            words += [VALUES[name], value]
    n_slots = int(options.get("--parallel", 1))
    words += ["--ctx", str(int(options.get("--ctx-size", 2048)) // n_slots)]
    words += ["--template", options.get("--chat-template", "chatml")]
    if "--model-draft" not in options:
        words += ["--spec", "off"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if "--api-key" in options:
        environment["LOCALSPEC_API_KEY"] = options["--api-key"]
    os.execve(sys.executable, [sys.executable, "-m", "localspec", *words], environment)


def _pair_options(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, word in enumerate(given):
        if word.startswith("-"):
            value = given[i + 1] if i + 1 < len(given) else ""
            yield word, "" if value.startswith("--") else value


def run_suite(checkout: Path, python: Path) -> tuple[int, dict[str, str]]:
    """The number of tests that passed, and the messages of those whose failure is not
    expected.

    `python` has what they require: pytest, requests, wget, filelock, numpy,
    prometheus-client and openai. Nothing in `checkout`, a source tree of llama.cpp, is
    changed.
    """
    tests = checkout.resolve() / "tools/server/tests"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "llama-server"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        program.chmod(0o755)
        (folder / "tmp").mkdir()
        (folder / "tmp" / DRAFT_FILE).touch()
        (folder / "no_downloads.py").write_text(NO_DOWNLOADS)
        report = folder / "report.xml"
        files = [str(tests / f"unit/test_{file}.py") for file in FILES]
        command = [str(python), "-m", "pytest", *files, "-q", "-p", "no:cacheprovider"]
        command += [
            "-p",
            "no_downloads",
            f"--junit-xml={report}",
            "--rootdir",
            str(tests),
        ]
        environment = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(program),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": name,
            "LOCALSPEC_DATA_DIR": str(folder / "data"),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        subprocess.run(command, cwd=folder, env=environment, check=False)
        cases = list(ET.parse(report).iter("testcase"))
    failed = {
        case.get("name", ""): (failure.get("message") or "").partition("\n")[0]
        for case in cases
        for failure in (*case.iter("failure"), *case.iter("error"))
    }
    unexpected = {
        k: v for k, v in failed.items() if k.partition("[")[0] not in EXPECTED
    }
    return sum(not len(case) for case in cases), unexpected


if __name__ == "__main__":
    serve(sys.argv[1:])
