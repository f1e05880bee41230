"""llama.cpp's rule for pairs, and which part of it fails."""

from collections.abc import Sequence
from typing import Any

from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, WORDS, Tensor


def sized(
    n: int,
    *keys: tuple[bytes, int, Any],
    arch: bytes = b"llama",
    words: Sequence[bytes] = WORDS,
) -> Header:
    """Of a file with `n` rows of weights and these keys."""
    file = gguffile.model(words, arch=arch)
    file.tensors = [Tensor(shape=(32, n))]
    for key in keys:
        file.add(*key)
    data = file.data()
    return reader.parse(data, len(data))


PRE = b"tokenizer.ggml.pre"
CHAT = b"tokenizer.chat_template"
BY = b"general.quantized_by"
EXPERTS = (b"llama.expert_count", U32, 8), (b"llama.expert_used_count", U32, 2)


def test_what_is_warned_of() -> None:
    large = sized(99)
    small = sized(9)
    assert pair_compatibility.list_warnings(large, small) == ()
    for target, draft, words in [
        (sized(100), sized(50), "has 50 % of the target's bytes"),
        (sized(99, *EXPERTS), small, "mixture of experts"),
        (
            sized(99, arch=b"mamba2"),
            small,
            "The target has a recurrent state and cannot remove",
        ),
        (large, sized(9, arch=b"rwkv7"), "checkpoints for rollback"),
        (sized(99, arch=b"qwen35"), small, "checkpoints for rollback"),
        (large, sized(9, arch=b"eagle3"), "hidden states"),
        (large, sized(9, arch=b"new"), "The draft cannot be run: its arch"),
        (
            large,
            sized(9, (PRE, STRING, b"\x1b[2Jmy")),
            "pre-tokenizers differ (default, my)",
        ),
        (
            large,
            sized(9, words=[*WORDS, b"<|eot_id|>"]),
            "end-of-generation tokens differ",
        ),
        (
            sized(99, (CHAT, STRING, b"a")),
            sized(9, (CHAT, STRING, b"b")),
            "chat templates differ",
        ),
        (
            sized(99, (BY, STRING, b"Ann")),
            sized(9, (BY, STRING, b"Bob")),
            "(Ann and Bob)",
        ),
    ]:
        (warning,) = pair_compatibility.list_warnings(target, draft)
        assert words in warning
        assert warning.isprintable()
