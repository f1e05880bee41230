"""Rewrites command-line options in hints for the screen and for Python."""

from __future__ import annotations

import re

from localspec.speculation_methods import SPECS

_OPTION_VALUE = (
    r"(?: (\d+|[A-Z]+\b|none|on|f16|q8_0|q4_0|coupled|rejection|block|match|"
    rf"{'|'.join(SPECS)}))"
)
_QUOTED_VALUE = re.compile(r"[a-z]")

_SCREEN_REPLACEMENTS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"--verbose shows", "ctrl+l shows"),
        (r"[;.] [^;.]*\brun --anyway\b\.?", ""),  # the chat screen offers /anyway itself
        (r"--ctx (\d+)", r"a context of \1"),
        (r"--ctx\b", "context"),
        (r"--kv ([\w/]+)", r"a KV cache in \1"),
        (r"--draft-gpu-layers 0\b", "the draft model on the CPU"),
        (r"--gpu-layers (\d+)", r"\1 layers on the GPU"),
        (r"--gpu-layers\b", "layers on the GPU"),
        (r"--cpu-moe\b", "the experts in RAM"),
        (r"--draft none\b", "no draft model"),
        (r"--draft FILE\b", "your own draft model"),
        (r"--threads 1\b", "one thread"),
        (r"--flash-attn (\w+)", r"flash attention \1"),
        (r"--spec (\w+)", r"/spec \1"),
        (r"--verify (\w+)", r"/set verify \1"),
        (r"--max-tokens (\d+)", r"/set max_tokens \1"),
        (r"--exact\b", "/set exact on"),
        (r"leave --workers out", "remove it in the preferences"),
    )
)
_FLAG_OPTIONS = ("exact", "cpu-moe")
_VALUE_OPTIONS = (
    "draft-gpu-layers|gpu-layers|draft|ctx|kv|threads|flash-attn|spec|verify|max-tokens|template|"
    "workers"
)
_OPTION = re.compile(rf"--(?:({_VALUE_OPTIONS})\b{_OPTION_VALUE}?|({'|'.join(_FLAG_OPTIONS)})\b)")


def for_screen(hint: str) -> str:
    """Options as plain words, or as the chat commands that set them."""
    for pattern, replacement in _SCREEN_REPLACEMENTS:
        hint = pattern.sub(replacement, hint)
    return hint


def for_python(hint: str) -> str:
    """Options as arguments of `LLM`."""
    return _OPTION.sub(
        _python_argument, hint.replace("--verbose shows", "`detail` of this error has")
    )


def _python_argument(option: re.Match[str]) -> str:
    name, value, flag = option.groups()
    if flag:
        return f"{flag.replace('-', '_')}=True"
    name = name.replace("-", "_")
    if value is None:
        return str(name)
    return f'{name}="{value}"' if _QUOTED_VALUE.match(value) else f"{name}={value}"
