"""Tiny models that answer in messages on channels, as gpt-oss does."""

from collections.abc import Sequence

from msgspec.structs import replace

from tests.support import tinygguf
from tests.support.tinygguf import Model

CONTROLS = (
    *(
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
    ),
    "<|return|>",
)
TEMPLATE = """\
{%- if tools %}{{ '<|start|>developer<|message|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.thinking is defined %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- for call in message.tool_calls or [] %}
{{- '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary json' }}
{{- '<|message|>' + (call.function.arguments | tojson) + '<|call|>' }}
{%- endfor %}
{%- endfor %}
{{- '<|start|>assistant' }}"""

THOUGHT = (
    "<|channel|>",
    "analysis",
    "<|message|>",
    "PLAN",
    "<|end|>",
    "<|start|>",
    "assistant",
)
"""Behind it no word of these may follow: each of a model's words occurs once."""


def speaker(words: Sequence[str]) -> Model:
    """A model that says these words, each of them once, and then ends its turn."""
    model = tinygguf.parrot(words, n_ctx=4096, controls=CONTROLS)
    return replace(model, template=TEMPLATE)
