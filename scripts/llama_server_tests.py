#!/usr/bin/env python3
"""Runs llama.cpp's own tests of llama-server against `localspec serve`.

    scripts/llama_server_tests.py CHECKOUT [--python PYTHON] [--write docs/quality/llama-server.md]

CHECKOUT is a source tree of llama.cpp; nothing of it is copied or changed. PYTHON is that of an
environment with their requirements: pytest, requests, wget, filelock, numpy, prometheus-client and
openai. Their tests start this script in place of llama-server; it turns their options into ours,
and serves the demo pair, whatever model they ask for. So tests that expect the words of their
model fail; `REASONS` says which, and why. Exit code 1 if a test fails that it does not name.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "basic", "chat_completion", "completion", "compat_oai_responses", "ignore_eos", "infill",
    "metrics", "security", "speculative", "tokenize",
)  # fmt: skip
WORDS = "expects the words or token counts of its model"
VERBOSE = "no `__verbose` in answers: prompts are not sent back"
PROGRESS = "progress is told after batches of the engine's own size"
MULTIMODAL = "only text"
REFUSED_ORIGIN = "stricter: an Origin that is not of this computer is refused with 403"
PREFLIGHT = "a preflight request is answered with 204, not 200"
REASONS: dict[str, str] = {
    "test_server_multiple_addresses": "one address at a time",
    "test_no_ui": "no web page",
    "test_server_model_aliases_and_tags": "one name",
    "test_chat_completion": f"{WORDS}; one case gives a template as text",
    "test_chat_completion_cached_tokens": WORDS,
    "test_chat_completion_stream": WORDS,
    "test_chat_completion_with_openai_library": f"{WORDS}, and a fingerprint of llama.cpp",
    "test_chat_template": VERBOSE,
    "test_chat_template_assistant_prefill": VERBOSE,
    "test_chat_template_continue_final_message_vllm_compat": VERBOSE,
    "test_completion_with_response_format": WORDS,
    "test_return_progress": PROGRESS,
    "test_chat_completions_token_count": "no such route; `/tokenize` counts",
    "test_verbose_debug": VERBOSE,
    "test_completion_with_openai_library": f"{WORDS}, and a fingerprint of llama.cpp",
    "test_completion_stream_with_openai_library": WORDS,
    "test_completion_stream_with_openai_library_stops": WORDS,
    "test_responses_with_openai_library": WORDS,
    "test_responses_stream_with_llama_telemetry": "as OpenAI, a cut answer is `incomplete`",
    "test_infill_without_input_extra": "the demo pair has no tokens for infilling",
    "test_infill_with_input_extra": "the demo pair has no tokens for infilling",
    "test_metrics_disabled": "metrics are always there",
    "test_metrics_embedding_prompt_is_counted": "no embeddings",
    "test_access_static_assets_without_api_key": "no web page",
    "test_correct_api_key": "`/completions` is OpenAI's here",
    "test_correct_api_key_anthropic_header": "`/completions` is OpenAI's here",
    "test_cors_options": REFUSED_ORIGIN,
    "test_cors_origins_localhost_reflects": PREFLIGHT,
    "test_cors_origins_localhost_rejects": REFUSED_ORIGIN,
    "test_cors_origins_defaults_to_localhost_with_tools_enabled": PREFLIGHT,
    "test_cors_proxy_only_forwards_explicit_proxy_headers": "no proxy",
    "test_local_media_file": MULTIMODAL,
    "test_tokenize_with_bos": WORDS,
}
"""By function, or by name with parameters."""
NO_ROUTE = "no such route: `/v1/completions` and `/v1/chat/completions` answer"
OTHER_ROUTES = (
    "test_server_props", "test_server_slots", "test_load_split_model",
    "test_apply_chat_template", "test_completion", "test_completion_stream",
    "test_completion_stream_vs_non_stream", "test_consistent_result_same_seed",
    "test_different_result_different_seed", "test_consistent_result_different_batch_size",
    "test_cache_vs_nocache_prompt", "test_nocache_long_input_prompt",
    "test_json_prompt_no_mtmd", "test_json_prompt_mtm_error_when_not_supported",
    "test_completion_with_tokens_input", "test_completion_parallel_slots",
    "test_completion_unified", "test_completion_response_fields", "test_n_probs",
    "test_n_probs_stream", "test_n_probs_post_sampling",
    "test_n_probs_post_backend_sampling", "test_logit_bias", "test_cancel_request",
    "test_completion_prompt_cache", "test_ignore_eos_populates_logit_bias",
    "test_ignore_eos_false_no_logit_bias", "test_metrics_prometheus_format",
    "test_metrics_prompt_processed_and_cached",
    "test_metrics_predicted_total_matches_requests",
    "test_metrics_generation_rate_excludes_first_token", "test_metrics_timings_are_finite",
    "test_metrics_timings_on_prompt_progress", "test_metrics_slots_idle_after_completion",
    "test_with_and_without_draft", "test_different_draft_min_draft_max",
    "test_synth_is_deterministic", "test_synth_ignores_target_tokens",
    "test_slot_ctx_not_exceeded", "test_with_ctx_shift", "test_multi_requests_parallel",
    "test_tokenize_detokenize",
)  # fmt: skip
"""Tests of `/completion`, `/props`, `/slots`, `/apply-template` and `/detokenize`."""
DRAFT_FILE = "stories15M-q4_0.gguf"
"""Of the tests of speculation; they download it unless it is in their folder."""

NO_DOWNLOADS = """
def pytest_collection_finish(session):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
"""
"""A plugin of pytest: theirs start a server for each model first, to download it."""

# --- in place of llama-server -------------------------------------------------------------------

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


# --- their tests --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    file: str
    name: str
    outcome: str
    """`passed`, `failed` or `skipped`."""
    message: str

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]

    @property
    def reason(self) -> str:
        if self.function in OTHER_ROUTES:
            return NO_ROUTE
        return REASONS.get(self.name) or REASONS.get(self.function, "")


def run_tests(checkout: Path, python: str, names: Sequence[str], only: str) -> list[Result]:
    tests = checkout / "tools/server/tests"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "llama-server"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --as-server "$@"\n')
        program.chmod(0o755)
        (folder / "tmp").mkdir()
        (folder / "tmp" / DRAFT_FILE).touch()
        (folder / "no_downloads.py").write_text(NO_DOWNLOADS)
        report = folder / "report.xml"
        files = [str(tests / f"unit/test_{file}.py") for file in names]
        command = [python, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider"]
        command += ["-p", "no_downloads"]
        command += [f"--junit-xml={report}", "--rootdir", str(tests), "-k", only]
        environment = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(program),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": name,
            "LOCALSPEC_DATA_DIR": str(folder / "data"),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        subprocess.run(command, cwd=folder, env=environment, check=False)
        return list(read_report(report))


def read_report(path: Path) -> Iterator[Result]:
    for case in ET.parse(path).iter("testcase"):
        file = case.get("classname", "").rpartition("test_")[2]
        name, outcome, message = case.get("name", ""), "passed", ""
        for kind, what in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (found := case.find(kind)) is not None:
                outcome, message = what, (found.get("message") or "").splitlines()[0]
        yield Result(file, name, outcome, message)


def format_page(results: Sequence[Result]) -> str:
    n_passed = sum(result.outcome == "passed" for result in results)
    lines = [
        "# llama.cpp's own tests of llama-server, against `localspec serve`",
        "",
        "Written by `scripts/llama_server_tests.py CHECKOUT --write docs/quality/llama-server.md`.",
        f"The demo pair is served in place of their models. {n_passed} of {len(results)} pass.",
        "",
        "| test | | reason |",
        "|---|---|---|",
    ]
    seen: dict[tuple[str, str, str, str], int] = {}
    for result in results:
        key = (result.file, result.function, result.outcome, result.reason or result.message)
        seen[key] = seen.get(key, 0) + 1
    for (file, function, outcome, reason), n in seen.items():
        times = f" ({n})" if n > 1 else ""
        text = "" if outcome == "passed" else re.sub(r"[|\n]", " ", reason)[:160]
        lines.append(f"| {file} `{function}`{times} | {outcome} | {text} |")
    return "\n".join([*lines, ""])


def main() -> int:
    if sys.argv[1:2] == ["--as-server"]:
        serve(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--files", nargs="+", default=FILES, choices=FILES)
    parser.add_argument("--only", default="", metavar="WORDS", help="as pytest's -k")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = run_tests(args.checkout.resolve(), args.python, args.files, args.only)
    page = format_page(results)
    if args.write is not None:
        args.write.write_text(page)
    print(page)
    unexpected = [r for r in results if r.outcome == "failed" and not r.reason]
    for result in unexpected:
        print(f"unexpected: {result.file} {result.name}: {result.outcome} {result.message}")
    return bool(unexpected) or not results


if __name__ == "__main__":
    sys.exit(main())
