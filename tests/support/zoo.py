"""The tiny models by name, each written on first use."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tests.support import head_models, head_targets, tinygguf
from tests.support.head_models import quantised
from tests.support.tinygguf import WORDS, Model, Shape

HELLO = ("▁Hello", ",", "▁wor", "ld", "!", "\n", "▁Bye", ".")
HELLO_TEXT = " Hello, world!\n Bye."
"""The output of `parrot`."""
CHATTER = (
    "▁one",
    "▁two",
    "▁three",
    "▁four",
    "▁five",
    "▁six",
    "▁seven",
    "▁eight",
    "▁nine",
)
"""`chatter` repeats these words without end."""

CHAT_TEXT = """\
Sure! Here is what you asked for – naïvely:

1. **漢字** and a café,
2. `twice`, which is *déjà vu* 🙂

```python
def twice(x: int) -> int:
    return 2 * x  # no more
```

> Anything else?"""
"""The answer of `chatty` and `no-system`."""
THOUGHT_TEXT = "<think>They greet me; I greet back.</think>Hello there."
"""The answer of `thinker`."""
CALL_TEXT = (
    'I look.<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
)
"""The answer of `caller`, and the first of `agent`."""
READING_TEXT = 'I look.<tool_call>{"name": "folder_read", "arguments": {"path": "tea"}}</tool_call>'
"""The first answer of `reader`."""
RESULT_TEXT = "Sunny there today!"
"""What `agent` and `reader` answer to the result of a tool."""
CHAT_CONTROLS = ("<|im_start|>", "<|im_end|>")
FIM_CONTROLS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}"""
CALLER_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' + '\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}"""
AGENT_TEMPLATE = CALLER_TEMPLATE.replace(
    "'<|im_start|>assistant\n'",
    "'<|im_end|>' if messages[-1].role == 'tool' else '<|im_start|>assistant\n'",
)
"""A prompt that ends in `<|im_end|>` continues with what `agent` has after it."""
THINKER_TEMPLATE = """\
{%- for message in messages %}
{%- set said = message.content.split('</think>')[-1] %}
{{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined %}
{{- '<think>' if enable_thinking else '<think></think>' }}
{%- endif %}"""
NO_SYSTEM_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}"""

ESC = "\x1b"
BEL = "\x07"
CSI = "\x9b"
OSC = "\x9d"
ST = "\x9c"
HOSTILE = (
    "▁one",
    f"{ESC}]52;c;cHduZWQ={BEL}",  # writes the clipboard
    f"{ESC}[2J",
    f"{CSI}31m",
    f"{OSC}0;owned{ST}",
    ESC,  # a sequence over two tokens
    "]0;owned",
    BEL,
    "<0xC2>",  # a C1 control over two byte tokens
    "<0x9B>",
    "6n",
    "\u202e",
    "\r",
    "\x08",
    "\x7f",
    f"{ESC}Pq{ESC}\\",
    "▁two",
)


class Zoo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        path = self.folder / f"{name}.gguf"
        if not path.exists():
            MODELS[name]().write(path)
        return path


def _nan(row: int | None) -> Model:
    """Logits are NaN at once, or after the word `HELLO[row]`."""
    model = tinygguf.parrot(HELLO)
    if row is None:
        model.tensors["output.weight"][:] = np.nan
    else:
        model.tensors["token_embd.weight"][model.vocabulary().index(HELLO[row])] = (
            np.nan
        )
    return model


def _chat(text: str, template: str, *controls: str) -> Model:
    """Generates `text` and `<|im_end|>` after any prompt.

    The prompt must not end in one of the text's words.
    """
    marked = "|".join(map(re.escape, controls)) or "(?!)"
    said: list[str] = []
    held = ""
    for piece in re.findall(rf"{marked}|\n+ *| ?\w+|[^\w\s]| ", text):
        held += piece
        if held not in (*said, "\n"):  # each word once, and none that a prompt ends in
            said.append(held)
            held = ""
    words = [word.replace(" ", "▁") for word in (*said[:-1], said[-1] + held)]
    own = [control for control in controls if control not in CHAT_CONTROLS]
    model = tinygguf.parrot(words, n_ctx=4096, controls=(*own, *CHAT_CONTROLS))
    return replace(model, template=template)


def _renamed(token: int, text: str, words: Sequence[str] = WORDS) -> Model:
    model = tinygguf.llama(0, words=words)
    tokens = model.vocabulary()
    tokens[token] = text
    return replace(model, tokens=tokens)


def _without_bytes() -> Model:
    model = tinygguf.llama(0)
    return replace(
        model, tokens=[t.replace("<0x", "<byte ") for t in model.vocabulary()]
    )


MODELS: dict[str, Callable[[], Model]] = {
    # Q8_0, for tests that need equal logits at every batch width
    "target": lambda: quantised(tinygguf.llama(0)),
    "deep": lambda: quantised(head_models.deep()),
    "cousin": lambda: quantised(tinygguf.nudged(tinygguf.llama(0), seed=5)),
    "stranger": lambda: quantised(tinygguf.llama(7)),
    "tied": lambda: quantised(tinygguf.llama(3, tied=True)),
    "sliding-f32": lambda: tinygguf.sliding(0),
    "sliding": lambda: quantised(tinygguf.sliding(0)),
    "hybrid": lambda: quantised(tinygguf.lfm2(0)),
    "hybrid-cousin": lambda: quantised(
        tinygguf.nudged(tinygguf.lfm2(0), seed=5, by=0.02)
    ),
    "recurrent": lambda: quantised(tinygguf.mamba2(0)),
    # heads of `deep`, with random weights
    "eagle3": head_models.eagle3,
    "eagle3-own": lambda: head_models.eagle3(n_embd=32),
    "eagle3-reduced": lambda: head_models.eagle3(reduced=range(40, 340, 2)),
    "dflash": head_models.block,
    "dspark": lambda: head_models.block(markov=True),
    "dflash2": lambda: head_models.with_selector(head_models.block()),
    # with a sliding window and an MTP layer
    "mimo": lambda: quantised(head_models.mimo2()),
    "chain": lambda: quantised(head_models.mimo2(n_mtp=3)),
    "step35": lambda: quantised(head_models.step35()),
    "hy_v3": lambda: quantised(head_models.hy_v3()),
    # attention and Mamba
    "granite": lambda: head_targets.target("granitehybrid"),
    # Gemma 4 and its assistant
    "gemma4": head_targets.gemma4,
    "assistant": lambda: quantised(head_models.assistant(head_targets.gemma4())),
    # with known output
    "parrot": lambda: tinygguf.parrot(HELLO),
    "chatter": lambda: tinygguf.parrot(CHATTER, loop=True, n_ctx=65536),
    "hostile": lambda: tinygguf.parrot(HOSTILE),
    "nan": lambda: _nan(None),
    "nan-later": lambda: _nan(2),
    "chatty": lambda: _chat(CHAT_TEXT, CHAT_TEMPLATE),
    "caller": lambda: _chat(CALL_TEXT, CALLER_TEMPLATE, "<tool_call>", "</tool_call>"),
    "agent": lambda: _chat(
        f"{CALL_TEXT}<|im_end|>{RESULT_TEXT}",
        AGENT_TEMPLATE,
        *("<tool_call>", "</tool_call>", "<|im_end|>"),
    ),
    "reader": lambda: _chat(
        f"{READING_TEXT}<|im_end|>{RESULT_TEXT}",
        AGENT_TEMPLATE,
        *("<tool_call>", "</tool_call>", "<|im_end|>"),
    ),
    "thinker": lambda: _chat(THOUGHT_TEXT, THINKER_TEMPLATE, "<think>", "</think>"),
    "infiller": lambda: tinygguf.parrot(HELLO, controls=FIM_CONTROLS),
    "no-system": lambda: _chat(CHAT_TEXT, NO_SYSTEM_TEMPLATE),
    # vocabularies
    "f32": lambda: tinygguf.llama(0),
    "padded": lambda: tinygguf.llama(1, words=[*WORDS, "▁pad"]),
    "reordered": lambda: quantised(tinygguf.llama(4, words=tuple(reversed(WORDS)))),
    # without the token of one byte, so no draft by text either
    "wide": lambda: _renamed(
        257, "▁byte", WORDS + tuple(f"▁pad{i}" for i in range(200))
    ),
    "renamed": lambda: _renamed(257, "▁other"),
    "renamed-rudely": lambda: _renamed(256, f"{ESC}]52;c;cHduZWQ={BEL}rude"),
    "no-bytes": _without_bytes,
    "vocabulary-only": lambda: replace(tinygguf.llama(0), tensors={}),
    "no-tokenizer": lambda: replace(tinygguf.llama(0), tokenizer="none"),
    # headers
    "vast": lambda: tinygguf.llama(0, shape=Shape(n_ctx=2**31 - 1)),
    "future": lambda: replace(tinygguf.llama(0), arch="llama99"),
}
