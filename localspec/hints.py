"""Options of the command line in other words, for hints that are read where there is none."""

from __future__ import annotations

import re

from localspec.speculation import SPECS

_OPTION_VALUE = (
    r"(?: (\d+|[A-Z]+\b|none|on|f16|q8_0|q4_0|coupled|rejection|block|match|"
    rf"{'|'.join(SPECS)}))"
)
_QUOTED_VALUE = re.compile(r"[a-z]")

_SCREEN_REPLACEMENTS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"; --verbose shows", "; ctrl+l shows"),
        (r"; all the same: run --anyway", ""),  # a chat says /anyway below it
        (r"--ctx (\d+)", r"a context of \1"),
        (r"--ctx\b", "context"),
        (r"--kv (\w+)", r"keys and values in \1"),
        (r"--draft-gpu-layers 0\b", "the draft on the CPU"),
        (r"--gpu-layers (\d+)", r"\1 layers on the GPU"),
        (r"--gpu-layers\b", "layers on the GPU"),
        (r"--cpu-moe\b", "the experts in the computer's memory"),
        (r"--draft none\b", "no draft"),
        (r"--draft FILE\b", "a draft of yours"),
        (r"--threads 1\b", "one thread"),
        (r"--flash-attn (\w+)", r"flash attention on \1"),
        (r"--spec (\w+)", r"/spec \1"),
        (r"--verify (\w+)", r"/set verify \1"),
        (r"--max-tokens (\d+)", r"/set max_tokens \1"),
        (r"--exact\b", "/set exact on"),
    )
)
_FLAG_OPTIONS = ("exact", "cpu-moe")
_VALUE_OPTIONS = (
    "draft-gpu-layers|gpu-layers|draft|ctx|kv|threads|flash-attn|spec|verify|max-tokens|template"
)
_OPTION = re.compile(rf"--(?:({_VALUE_OPTIONS})\b{_OPTION_VALUE}?|({'|'.join(_FLAG_OPTIONS)})\b)")


def for_screen(hint: str) -> str:
    """For the screen: settings by what they are, and those of a chat as they are typed there."""
    for pattern, words in _SCREEN_REPLACEMENTS:
        hint = pattern.sub(words, hint)
    return hint


def for_python(hint: str) -> str:
    """For a script: as arguments of `LLM`."""
    return _OPTION.sub(
        _python_argument, hint.replace("; --verbose shows", "; `detail` of this has")
    )


def _python_argument(found: re.Match[str]) -> str:
    name, value, switch = found.groups()
    if switch:
        return f"{switch.replace('-', '_')}=True"
    name = name.replace("-", "_")
    if value is None:
        return str(name)
    return f'{name}="{value}"' if _QUOTED_VALUE.match(value) else f"{name}={value}"
