"""Errors have codes that a script can tell apart, and hints for each front end."""

import copy
import json

import pytest

from localspec import errors
from localspec.api.answer import python_hint
from localspec.errors import Hint, LocalspecError, OutOfMemoryError, UsageError
from localspec.serve import api_error
from localspec.tui.notices import screen_hint

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LocalspecError)
]


def test_each_kind_has_codes_of_its_own_that_no_signal_or_shell_uses() -> None:
    assert len(KINDS) > 8
    assert len({kind("x").code for kind in KINDS}) == len(KINDS)
    assert len({kind("x").exit_code for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert 1 <= kind("x").exit_code < 64, kind
    assert UsageError("x").exit_code == 2  # what shells expect
    assert LocalspecError("x").code == "failure"
    assert LocalspecError("x").exit_code == 1


HINTS = [
    (
        "This fits: {ctx=2048} or {kv=q8_0}. More: localspec fit",
        "This fits: --ctx 2048 or --kv q8_0. More: localspec fit",
        "This fits: a context of 2048 or a KV cache in q8_0. More: localspec fit",
        'This fits: ctx=2048 or kv="q8_0". More: localspec fit',
    ),
    (
        "Try another file, or {draft=none}; {verbose} shows the last log lines.",
        "Try another file, or --draft none; --verbose shows the last log lines.",
        "Try another file, or no draft model; ctrl+l shows the last log lines.",
        'Try another file, or draft="none"; `detail` of this error shows the last log lines.',
    ),
    (
        "Details: localspec fit.{ Load anyway: run |anyway}",
        "Details: localspec fit. Load anyway: run --anyway",
        "Details: localspec fit.",
        "Details: localspec fit.",
    ),
    (
        "{draft_gpu_layers=0} {cpu_moe=all} {gpu_layers=12} {threads=1}",
        "--draft-gpu-layers 0 --cpu-moe all --gpu-layers 12 --threads 1",
        "the draft model on the CPU the experts of all layers in RAM 12 layers on the GPU "
        "one thread",
        'draft_gpu_layers=0 cpu_moe="all" gpu_layers=12 threads=1',
    ),
    (
        "Add {draft=FILE}.",
        "Add --draft FILE.",
        "Add your own draft model.",
        "Add draft=FILE.",
    ),
    ("Make room on the disk.",) * 4,
]


@pytest.mark.parametrize(("template", "command", "screen", "python"), HINTS)
def test_each_front_end_names_options_in_its_way(
    template: str, command: str, screen: str, python: str
) -> None:
    hint = Hint(template)
    assert hint == command
    assert screen_hint(hint) == screen
    assert python_hint(hint) == python
    assert json.dumps(hint) == json.dumps(command)
    assert screen_hint(copy.deepcopy(hint)) == screen


def test_a_request_names_its_fields() -> None:
    error = api_error.from_engine(
        UsageError("No.", Hint("Use {max_tokens=1} or {verify=match}."))
    )
    assert error.message == "No. Use max_tokens: 1 or localspec.verify: match."
    error = api_error.from_engine(OutOfMemoryError("No.", Hint("Use a smaller {ctx}.")))
    assert error.message == "No. Use a smaller --ctx."
