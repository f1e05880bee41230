"""llama.cpp's rule for pairs, and which part of it fails."""

from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, WORDS, File, Tensor


def parsed(file: File) -> Header:
    data = file.data()
    return reader.parse(data, len(data))


def sized(n: int, file: File | None = None) -> File:
    file = file or gguffile.model()
    file.tensors = [Tensor(shape=(32, n))]
    return file


def test_what_is_warned_of() -> None:
    assert pair_compatibility.list_warnings(parsed(sized(100)), parsed(sized(10))) == ()
    for target, draft, words in [
        (sized(100), sized(50), "has 50 % of the target's bytes"),
        (
            sized(99).add(b"llama.expert_count", U32, 8).add(b"llama.expert_used_count", U32, 2),
            sized(9),
            "mixture of experts",
        ),
        (
            sized(99, gguffile.model(arch=b"mamba2")),
            sized(9),
            "The target has a recurrent state and cannot remove",
        ),
        (sized(99), sized(9, gguffile.model(arch=b"rwkv7")), "checkpoints for rollback"),
        (sized(99, gguffile.model(arch=b"qwen35")), sized(9), "checkpoints for rollback"),
        (sized(99), sized(9, gguffile.model(arch=b"eagle3")), "hidden states"),
        (sized(99), sized(9, gguffile.model(arch=b"new")), "The draft cannot be run: its arch"),
        (
            sized(99),
            sized(9, gguffile.model().add(b"tokenizer.ggml.pre", STRING, b"\x1b[2Jmy")),
            "Their pre-tokenizers differ (default, my)",
        ),
        (
            sized(99),
            sized(9, gguffile.model([*WORDS, b"<|eot_id|>"])),
            "end-of-generation tokens differ",
        ),
        (
            sized(99).add(b"tokenizer.chat_template", STRING, b"a"),
            sized(9).add(b"tokenizer.chat_template", STRING, b"b"),
            "chat templates differ",
        ),
        (
            sized(99).add(b"general.quantized_by", STRING, b"Ann"),
            sized(9).add(b"general.quantized_by", STRING, b"Bob"),
            "(Ann and Bob)",
        ),
    ]:
        (warning,) = pair_compatibility.list_warnings(parsed(target), parsed(draft))
        assert words in warning and warning.isprintable()
