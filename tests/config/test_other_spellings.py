"""Names of llama.cpp, Ollama and LM Studio: every one is taken, or refused with a hint."""

import os
import re
from pathlib import Path

import click
import pytest

from localspec import command_table, extras
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.config import other_spellings
from localspec.config.options import OPTIONS
from localspec.config.other_spellings import BY_FLAG, MODEL, SPELLINGS

LLAMA_CPP = os.environ.get("LLAMA_CPP_CHECKOUT", "")
_OPTION = re.compile(
    r'common_arg\(\s*\{((?:\s*"[^"]+"\s*,?)+)\}(?:\s*,\s*\{([^}]*)\})?'
)


def our_flags(*commands: str) -> set[str]:
    flags: set[str] = set()
    for name in commands:
        command = extras.load_object(command_table.read_commands()[name].path)
        for param in command.params:
            if isinstance(param, click.Option):
                flags.update(param.opts)
    return flags


@pytest.mark.skipif(not LLAMA_CPP, reason="LLAMA_CPP_CHECKOUT names no source tree")
def test_every_option_of_llama_cpp_is_ours_taken_or_refused() -> None:
    source = (Path(LLAMA_CPP) / "common" / "arg.cpp").read_text("utf-8")
    theirs: set[str] = set()
    for positive, negative in _OPTION.findall(source):
        theirs.update(re.findall(r'"([^"]+)"', positive + negative))
    # These are options of every command of localspec, or of localspec itself.
    global_options = {"-h", "--help", "--version", "--offline", "--models-dir"}
    ours = our_flags("run", "serve") | global_options
    unknown = {
        name for name in theirs if name not in ours and f"--{name}" not in BY_FLAG
    }
    assert len(theirs) > 300
    assert unknown - BY_FLAG.keys() == set()


def test_what_is_taken_is_an_option_of_run_or_serve_and_nothing_is_named_twice() -> (
    None
):
    ours = our_flags("run", "serve") | {MODEL}
    assert {each.ours for each in SPELLINGS if each.ours} <= ours
    assert all(bool(each.ours) != bool(each.hint) for each in SPELLINGS)
    assert len(BY_FLAG) == len(SPELLINGS)


def test_a_taken_name_is_no_option_of_its_own() -> None:
    """Else its meaning would depend on the command."""
    taken = {each.flag for each in SPELLINGS if each.ours}
    assert taken & our_flags("run", "serve") == set()


def test_hints_name_flags_that_are_there() -> None:
    ours = our_flags("run", "serve", "bench") | {"--help"}
    hinted = {
        flag for each in SPELLINGS for flag in re.findall(r"--[a-z-]+", each.hint)
    }
    assert hinted - ours == set()


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("temp", "temperature"),
        ("num_ctx", "ctx"),
        ("num_predict", "max_tokens"),
        ("--ctx-size", "ctx"),
        ("contextLength", "ctx"),
        ("topKSampling", "top_k"),
        ("num_gpu", "gpu_layers"),
        ("n-predict", "max_tokens"),
        ("mirostat", ""),
        ("nonsense", ""),
        ("t", ""),  # A short option is no name.
        ("model", ""),  # It is an argument here.
    ],
)
def test_a_name_is_found_in_every_form(typed: str, ours: str) -> None:
    assert other_spellings.find_option_name(typed) == ours


def test_a_found_name_is_one_of_an_option() -> None:
    found = {other_spellings.find_option_name(each.name) for each in SPELLINGS}
    known = {*OPTIONS, *CHAT_SETTING_FIELDS, ""}
    # These are options of commands alone.
    assert found - known == {"draft", "template", "system"}
