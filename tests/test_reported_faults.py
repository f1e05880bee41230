"""Faults that were reported of this program or of others: what is expected, and the tests of it.

`python -m tests.test_reported_faults [CASE …]` runs the tests of all cases, or of those named.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

MARKDOWN, SERVE = "tui/text/test_markdown.py", "serve/test_hostile_inputs.py"
TERMINAL, CLIENT, PLAN = "tui/test_terminal.py", "models/test_client.py", "models/test_pull_plan.py"
CALLS, ACCESS = "models/test_tool_calls.py", "serve/test_access_rules.py"
HTTP = "serve/test_http_app.py"
FORMATS, SANITIZE = "serve/test_completion_formats.py", "test_sanitize.py"
GRAMMARS, JINJA = "engine/constraints/test_grammars.py", "models/test_jinja_render.py"

FAULTS: dict[str, tuple[str, str]] = {
    "a chat of 41 turns": (
        "its answers are drawn when it is opened again, also without their events",
        "tui/test_saved_chats.py::test_answers_are_there_without_their_events",
    ),
    "`git clone <url>`, `List<String>`, `<p>`": (
        "every character of an answer is drawn",
        f"{MARKDOWN}::test_what_looks_like_a_tag_is_text",
    ),
    "`[1]: https://a.example`, `![a cat](address)`": (
        "addresses are drawn",
        f"{MARKDOWN}::test_every_visible_character_is_shown",
    ),
    "the byte FC from the terminal": (
        "it is a replacement character; the app goes on",
        f"{TERMINAL}::test_bytes_that_are_no_text",
    ),
    "any bytes from the terminal": (
        "the app goes on",
        "tui/test_random_input.py::test_no_bytes_end_the_app",
    ),
    "any Markdown": (
        "streamed and opened again, every visible character is drawn",
        "tui/test_random_input.py::test_no_visible_character_of_an_answer_is_lost",
    ),
    "U+200C, U+200D, U+200E, U+061C, typed or pasted": (
        "they are stored and sent as they are",
        "tui/screens/test_chat.py::test_what_is_typed_is_what_is_stored_and_sent",
    ),
    "ESC in a bracketed paste": (
        "the paste is text",
        f"{TERMINAL}::test_a_paste_is_text_whatever_it_holds_and_however_it_comes",
    ),
    "exported COLUMNS and LINES": (
        "the window has its own size",
        f"{TERMINAL}::test_the_window_has_its_own_size",
    ),
    "a terminal that goes while the app draws": (
        "the app ends, the answer is saved",
        f"{TERMINAL}::test_a_terminal_that_goes_ends_app_and_engine_and_the_answer_is_saved",
    ),
    "EDITOR=/Users/O'Brien/bin/ed": (
        "an error that says so",
        "config/test_toml_file.py::test_an_editor_with_an_open_quotation_mark_is_an_error",
    ),
    "'/my files/a.gguf', /my\\ files/a.gguf, file:///my%20files/a.gguf": (
        "one path",
        "test_paths.py::test_every_spelling_of_a_path",
    ),
    "an answer stopped in a code block": (
        "it does not swallow the rest of an export",
        "chat/test_export.py::test_an_answer_that_was_stopped_in_a_block_swallows_nothing",
    ),
    "a file in Latin-1 or UTF-16": (
        "it is read as such, and this is said",
        "chat/test_session.py::test_a_file_that_is_not_utf8_is_said_to_be_so",
    ),
    "a linked folder of a repository, blobs or models": (
        "list, run, pull and rm agree",
        "models/test_inventory.py::test_a_folder_of_models_on_another_disk_is_listed_and_removed",
    ),
    "ALL_PROXY=socks://127.0.0.1:7890": (
        "the variable is named",
        f"{CLIENT}::test_a_proxy_that_cannot_be_used_is_named",
    ),
    "HF_TOKEN=“hf_abc”": (
        "the token is named",
        f"{CLIENT}::test_a_token_that_no_header_can_have_is_named",
    ),
    "an expired token": (
        "a model that is here is here",
        f"{PLAN}::test_an_expired_token_keeps_nobody_from_a_model_that_is_here",
    ),
    "org/repo:F16 beside BF16": (
        "the tag is a whole word",
        "models/test_reference.py::test_a_tag_is_a_whole_word",
    ),
    "?show_file_info=, tree/main/FOLDER, refs%2Fpr%2F1": (
        "what the page shows",
        "models/test_reference.py::test_what_was_typed",
    ),
    "a rate limit": (
        "the wait is told",
        "models/test_download.py::test_a_wait_that_the_hub_asks_for_is_reported",
    ),
    "qwen/qwen3-8b-gguf, or a former name": (
        "the model that is here",
        f"{PLAN}::test_another_spelling_or_a_former_name_is_the_same_model",
    ),
    "a hub's `size` as a text, `downloads` 1e999": (
        "a value or an error of the hub",
        f"{CLIENT}::test_values_of_any_type_are_an_answer_or_no_hubs",
    ),
    "a body that goes on after its size": (
        "the download ends",
        "models/test_download.py::test_what_passes_is_got_over",
    ),
    "U+2028, U+2029, U+0085 in a stream": (
        "they are escaped",
        f"{SERVE}::test_an_answer_has_no_line_end_but_those_of_the_stream",
    ),
    "--host ::": (
        "the address that is printed answers, IPv4 too",
        "serve/test_http_server.py::test_all_addresses_of_both_kinds",
    ),
    "tool arguments: string or null, closing tags, raw line feeds, missing tags": (
        "what was meant, as JSON, or text",
        f"{CALLS}::test_calls_are_found_however_the_stream_is_cut",
    ),
    "texts that models write for calls": (
        "what was meant, as JSON, or text",
        f"{CALLS}::test_calls_that_models_write_are_what_they_mean",
    ),
    "a call at the end of thinking that is not closed": (
        "a call",
        f"{CALLS}::test_an_answer_may_end_with_a_call_in_its_thinking",
    ),
    "content: null in a message of the server's own": (
        "it is accepted",
        "serve/test_prompts.py::test_an_empty_answer_of_its_own_is_accepted",
    ),
    "the first delta": (
        "content is empty, not null",
        "serve/test_completion_formats.py::test_a_chat_streamed_and_not",
    ),
    "usage of two prompts": ("both are counted", f"{FORMATS}::test_text_completions"),
    "401 and 415 for a page": (
        "with CORS headers",
        f"{ACCESS}::test_a_page_can_read_why_it_is_refused",
    ),
    "a later system message": (
        "the first stays the system prompt",
        f"{JINJA}::test_a_later_system_prompt_leaves_the_first_in_its_place",
    ),
    "two calls in a message, for Llama 3": (
        "one call a message",
        f"{JINJA}::test_several_calls_are_one_a_message_where_a_template_demands_it",
    ),
    "/v1/models/, /v1//models, a byte order mark": ("as without", f"{HTTP}::test_routes"),
    "HTTP/1.0 without Host, h2c, TLS": ("an answer, no output", f"{HTTP}::test_malformed_http"),
    "parallel_tool_calls: false, allowed_tools": (
        "one call, of an allowed tool",
        "serve/test_prompts.py::test_at_most_one_call_and_only_of_allowed_tools",
    ),
    'a schema of {"type": {}}, doubling $ref, an ambiguous grammar': (
        "200 or 400, the engine goes on",
        f"{SERVE}::test_a_schema_or_grammar_ends_no_engine",
    ),
    "grammars that take exponential time": (
        "they are followed or refused",
        f"{GRAMMARS}::test_an_ambiguous_grammar_is_followed_or_refused_in_little_time",
    ),
    "20,000 messages of one role": (
        "an answer or 400, and /health is answered meanwhile",
        "serve/test_malformed_requests.py::test_malformed_requests_change_nothing",
    ),
    "a template that fails or is slow": (
        "an error of one request; the template stays",
        "engine/test_chat_prompt.py::test_a_template_that_does_not_work_is_an_error_of_each_request",
    ),
    "a flood of special tokens": ("400", f"{SERVE}::test_a_flood_of_special_tokens_is_refused"),
    "20,000 items of /v1/responses": (
        "/health is answered meanwhile",
        f"{SERVE}::test_large_requests_are_read_beside_others",
    ),
    "lone surrogates in requests": (
        "200 or 400",
        "serve/test_http_app.py::test_no_malformed_request_is_a_fault",
    ),
    "keys with a BOM or in Latin-1, a file cut at 64 KiB": (
        "whole keys in any encoding",
        f"{ACCESS}::test_keys_of_any_encoding",
    ),
    "a chunk size of zz": ("nothing is printed", "serve/test_http_app.py::test_malformed_http"),
    "code that a lexer takes long for": (
        "coloured in part, beside the app",
        f"{MARKDOWN}::test_code_that_takes_a_lexer_long_is_coloured_in_part",
    ),
    "mcschema and other lexers": (
        "not coloured",
        f"{MARKDOWN}::test_other_languages_are_not_coloured",
    ),
    "text after U+0090 and U+009D": (
        "it stays",
        f"{SANITIZE}::test_only_what_is_forbidden_is_lost",
    ),
    "60,000 of U+009D": (
        "linear time",
        f"{SANITIZE}::test_malice_takes_no_longer_than_other_text",
    ),
    "calls without a name, with surrogates, `parameters: true`": (
        "a call or text; a stream has its end",
        f"{SERVE}::test_a_call_is_read_or_stays_text",
    ),
    "escapes in a worker's device": (
        "nothing reaches the terminal",
        "cli/test_terminal.py::test_every_line_of_a_command_passes_the_writer",
    ),
    "escapes in the name of a draft": (
        "nothing reaches the terminal",
        "cli/test_terminal.py::test_the_writer_takes_away_what_harms",
    ),
    "a header's float64 of 1e300": (
        "the file is refused",
        "models/test_parser.py::test_values_that_llama_cpp_would_die_of",
    ),
    "a header of 60 MB": (
        "kept headers are bounded by bytes",
        "models/test_reader.py::test_the_cache_is_bounded_by_bytes",
    ),
    "a number of 400 digits in recorded events": (
        "the line is skipped",
        "chat/test_events_file.py::test_a_damaged_line_is_named",
    ),
    "malformed requests of any kind": (
        "an error each; the answer to another stays the same",
        "serve/test_malformed_requests.py::test_malformed_requests_change_nothing",
    ),
}
"""By input: what is expected, and the test that tries it and what is like it."""


def test_every_fault_has_its_test() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for _, test in FAULTS.values():
        file, name = test.split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, test


def main(*names: str) -> int:
    chosen = {fault: FAULTS[fault] for fault in names} if names else FAULTS
    tests = [str(TESTS / test) for _, test in chosen.values()]
    return int(pytest.main(["--long", "-q", *dict.fromkeys(tests)]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
