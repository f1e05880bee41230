"""Small chat templates with tools, in the manner of families of models that think.

Each has its family's rules of when an answer's thinking is shown, its thinking tags and
its format of calls. The real templates are compared where LLAMA_CPP_CHECKOUT names them.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tests.support import tinygguf

THOUGHT = "PLAN: look there"


class ToolFamily(Struct, frozen=True):
    template: str
    tool_format: str
    """The row of `TOOL_FORMATS` that reads its calls."""
    controls: tuple[str, ...]
    """Its control tokens."""
    call: str
    """A call of `look` with the argument `at`, `Rome`, as the model writes it."""
    opening: str = ""
    """What an answer begins with that the prompt does not have."""
    closing: str = ""
    """What ends the thinking part."""


_LAST_QUESTION = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
"""

GPT_OSS = """\
{%- if tools %}{{ '<|start|>developer<|message|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.content and m.thinking %}{{ raise_exception('both content and thinking') }}{% endif %}
{%- set ns = namespace(is_answered=false) %}
{%- for later in messages[loop.index:] %}
{%- if later.role == 'assistant' and not later.tool_calls %}{% set ns.is_answered = true %}{% endif %}
{%- endfor %}
{%- if (m.content or m.thinking) and not ns.is_answered %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}
{%- endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}
{{- (m.content | tojson) + '<|end|>' }}
{%- else %}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{{- '<|start|>assistant' }}"""

QWEN = (
    _LAST_QUESTION
    + """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role != 'assistant' %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}
{{- value if value is string else (value | tojson) }}
{{- '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
)

GLM = (
    _LAST_QUESTION
    + """\
{%- if tools %}{{ '<|system|>' + (tools | tojson) }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|observation|><tool_response>' + m.content + '</tool_response>' }}
{%- elif m.role != 'assistant' %}
{{- '<|' + m.role + '|>' + m.content }}
{%- else %}
{{- '<|assistant|>' }}
{%- if loop.index0 > ns.last and m.reasoning_content %}
{{- '<think>' + m.reasoning_content + '</think>' }}
{%- else %}
{{- '</think>' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments | items %}
{{- '<arg_key>' + name + '</arg_key><arg_value>' }}
{{- value if value is string else (value | tojson) }}
{{- '</arg_value>' }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"""
)

DEEPSEEK = (
    _LAST_QUESTION
    + """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '\\n\\n<function_results>\\n<result>' + m.content + '</result>\\n</function_results>' }}
{%- elif m.role != 'assistant' %}
{{- '<｜User｜>' + m.content }}
{%- else %}
{{- '<｜Assistant｜>' if loop.previtem.role != 'tool' else '\\n\\n' }}
{%- if loop.index0 > ns.last %}
{{- '<think>' + (m.reasoning_content or '') }}
{%- endif %}
{{- '</think>' + m.content }}
{%- if m.tool_calls %}
{{- '\\n\\n<｜DSML｜function_calls>\\n' }}
{%- for call in m.tool_calls %}
{{- '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}
{%- for name, value in call.function.arguments | items %}
{%- if value is string %}
{{- '<｜DSML｜parameter name="' + name + '" string="true">' + value }}
{%- else %}
{{- '<｜DSML｜parameter name="' + name + '" string="false">' + (value | tojson) }}
{%- endif %}
{{- '</｜DSML｜parameter>\\n' }}
{%- endfor %}
{{- '</｜DSML｜invoke>\\n' }}
{%- endfor %}
{{- '</｜DSML｜function_calls>' }}
{%- endif %}
{{- '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<｜Assistant｜>' if messages[-1].role != 'tool' else '\\n\\n' }}
{{- '<think>' }}
{%- endif %}"""
)

MINIMAX = (
    _LAST_QUESTION
    + """\
{{- ']~!b[]~b]system\\n' }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{{- '[e~[\\n' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- ']~b]tool\\n<response>' + m.content + '</response>[e~[\\n' }}
{%- elif m.role != 'assistant' %}
{{- ']~b]' + m.role + '\\n' + m.content + '[e~[\\n' }}
{%- else %}
{{- ']~b]ai\\n' }}
{%- if loop.index0 > ns.last and m.reasoning_content %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- if m.tool_calls %}
{{- '\\n<minimax:tool_call>\\n' }}
{%- for call in m.tool_calls %}
{{- '<invoke name="' + call.function.name + '">\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter name="' + name + '">' }}
{{- value if value is string else (value | tojson) }}
{{- '</parameter>\\n' }}
{%- endfor %}
{{- '</invoke>\\n' }}
{%- endfor %}
{{- '</minimax:tool_call>' }}
{%- endif %}
{{- '[e~[\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ']~b]ai\\n<think>\\n' }}{% endif %}"""
)

FAMILIES = {
    "gpt-oss": ToolFamily(
        template=GPT_OSS,
        tool_format="gpt-oss",
        controls=(
            *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
            *("<|end|>", "<|call|>", "<|return|>"),
        ),
        opening="<|channel|>analysis<|message|>",
        closing="<|end|><|start|>assistant",
        call=' to=functions.look<|channel|>commentary json<|message|>{"at": "Rome"}',
    ),
    "qwen": ToolFamily(
        template=QWEN,
        tool_format="tags",
        controls=(
            *("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
            *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        ),
        closing="\n</think>\n\n",
        call="<tool_call>\n<function=look>\n<parameter=at>\nRome\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm": ToolFamily(
        template=GLM,
        tool_format="tags",
        controls=(
            *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            *("<think>", "</think>", "<tool_call>", "</tool_call>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            *("<tool_response>", "</tool_response>"),
        ),
        closing="</think>",
        call="<tool_call>look<arg_key>at</arg_key><arg_value>Rome</arg_value></tool_call>",
    ),
    "deepseek": ToolFamily(
        template=DEEPSEEK,
        tool_format="dsml",
        controls=(
            *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            *("<think>", "</think>", "｜DSML｜"),
        ),
        closing="</think>",
        call='\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="look">\n'
        '<｜DSML｜parameter name="at" string="true">Rome</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "minimax": ToolFamily(
        template=MINIMAX,
        tool_format="minimax",
        controls=(
            *("]~!b[", "]~b]", "[e~[", "<think>", "</think>"),
            *("<minimax:tool_call>", "</minimax:tool_call>"),
        ),
        closing="\n</think>\n\n",
        call='\n<minimax:tool_call>\n<invoke name="look">\n'
        '<parameter name="at">Rome</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
}


def split_answer(family: ToolFamily) -> list[str]:
    """The tokens of an answer with thinking and a call: control tokens, and the rest.

    A tokenizer makes more of the rest: it knows it as a word, and not how to come there.
    """
    text = f"{family.opening}{THOUGHT}{family.closing}{family.call}"
    controls = "|".join(map(re.escape, family.controls))
    return [piece for piece in re.split(f"({controls})", text) if piece]


def write_caller(family: ToolFamily, path: Path) -> Path:
    """A model that thinks and calls after every prompt, and then ends its turn.

    It can say each word once, so it cannot write gpt-oss's headers.
    """
    pieces = split_answer(family)
    controls = [each for each in family.controls if each != "<|im_end|>"]
    controls.append("<|im_end|>")
    words = pieces if len(set(pieces)) == len(pieces) else ["ok"]
    known = {*words, *controls}
    others = [piece for piece in dict.fromkeys(pieces) if piece not in known]
    model = tinygguf.parrot(words, n_ctx=4096, controls=controls, others=others)
    model = replace(model, template=family.template, add_space_prefix=False)
    return model.write(path)
