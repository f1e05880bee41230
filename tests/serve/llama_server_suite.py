"""llama.cpp's own tests of llama-server, run against `localspec serve`.

Their tests start this file in place of llama-server; it turns their options into ours and serves
the demo pair, whatever model they ask for. So tests that expect the words of their model fail:
`REASONS` says which, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
class SuiteResult:
    """A test that failed, with its message."""

    name: str
    message: str

    @property
    def is_expected(self) -> bool:
        function = self.name.partition("[")[0]
        return function in OTHER_ROUTES or self.name in REASONS or function in REASONS


def run_suite(checkout: Path, python: Path) -> tuple[int, list[SuiteResult]]:
    """The number of tests that passed, and those that failed.

    `python` has what they require: pytest, requests, wget, filelock, numpy, prometheus-client and
    openai. Nothing in `checkout`, a source tree of llama.cpp, is changed.
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
        command += ["-p", "no_downloads", f"--junit-xml={report}", "--rootdir", str(tests)]
        environment = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(program),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": name,
            "LOCALSPEC_DATA_DIR": str(folder / "data"),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        subprocess.run(command, cwd=folder, env=environment, check=False)
        cases = list(ET.parse(report).iter("testcase"))
    passed = [case for case in cases if not len(case)]
    return len(passed), list(find_failures(cases))


def find_failures(cases: Sequence[ET.Element]) -> Iterator[SuiteResult]:
    for case in cases:
        for failure in (*case.iter("failure"), *case.iter("error")):
            message = (failure.get("message") or "").partition("\n")[0]
            yield SuiteResult(case.get("name", ""), message)


if __name__ == "__main__":
    serve(sys.argv[1:])
