"""Hostile headers: each is refused with its reason, before llama.cpp sees the file."""

import random
import struct
import time
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from localspec.errors import ModelFileError
from localspec.models import pair_compatibility
from localspec.models.gguf import parser as gguf
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from tests.models import gguffile
from tests.models.gguffile import (
    F32,
    I32,
    STRING,
    U16,
    U32,
    WORDS,
    File,
    Tensor,
    array,
    text,
)

MIB = 1024**2


def refused(data: bytes) -> str:
    with pytest.raises(ModelFileError) as failure:
        reader.parse(data, len(data), "m.gguf")
    assert failure.value.hint
    message = failure.value.message
    assert message.startswith("m.gguf ")
    assert message.isprintable()
    assert len(message) < 400
    return message


def key(name: bytes, kind: int, value: bytes) -> bytes:
    """A file whose only key is this one."""
    return File(keys={name: (kind, value)}).data()


U64_MAX = struct.pack("<Q", 2**64 - 1)


def test_what_is_damaged() -> None:
    for data, words in [
        (key(b"", U32, bytes(4)), "is empty or duplicated"),
        (
            File()
            .add(b"one", U32, 1)
            .add(b"two", U32, 2)
            .data()
            .replace(b"two", b"one"),
            "is empty or duplicated",
        ),
        (key(b"k" * 65_536, U32, bytes(4)), "a key of 65,536 bytes"),
        (key(b"\x1b[2Jk", 99, bytes(8)), "'\\x1b[2Jk' is of type 99"),
        (key(b"k", STRING, U64_MAX), "a text of 18,446,744,073,709,551,615 bytes"),
        (key(b"k", 9, struct.pack("<IQ", 9, 1) + array(0, [1])), "of type 9"),  # nested
        (key(b"k", 9, struct.pack("<IQ", STRING, 10_000_001)), "10,000,001 elements"),
        (
            key(b"k", 9, struct.pack("<IQ", STRING, 2) + text(b"a") + U64_MAX),
            "is incomplete",
        ),
        (
            key(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 1_000_001)),
            "1,000,001 elements",
        ),
        (File(n_keys=100_001).data(), "100,001 keys"),
        (File(n_tensors=2**63).data(), "tensors, 0 keys"),
        (
            File(tensors=[Tensor(), Tensor()]).data(),
            "is duplicated or misplaced",
        ),  # one name
        (File(tensors=[Tensor(offset=32)]).data(), "is duplicated or misplaced"),
        (File(tensors=[Tensor(name=b"n" * 64)]).data(), "a tensor's name of 64 bytes"),
        (File(tensors=[Tensor(shape=(1,) * 5)]).data(), "5 dimensions"),
        (
            File(tensors=[Tensor(shape=(2**40, 2**40), n_bytes=32)]).data(),
            "has the shape",
        ),
        (
            File(tensors=[Tensor(shape=(33,), kind=8)]).data(),
            "has the shape",
        ),  # no whole block
        (File(tensors=[Tensor(kind=4)]).data(), "of type 4, which cannot be read"),
        (File().add(b"general.alignment", U32, 0).data(), "an alignment of 0"),
        (
            File().add(b"general.alignment", STRING, b"\x1b" * 200).data(),
            "an alignment of",
        ),
        (
            File().add(b"general.architecture", U32, 1).data(),
            "general.architecture is not text",
        ),
        (File().add(b"split.count", U16, 60_000).data(), "split keys are invalid"),
        (
            File().add(b"split.no", U16, 5).add(b"split.count", U16, 3).data(),
            "part 6 of 3",
        ),
    ]:
        assert words in refused(data)


def test_values_that_llama_cpp_would_die_of() -> None:
    value: Any
    for key, kind, value, words in (
        (b"llama.block_count", U32, 0, "block_count is 0"),
        (b"llama.rope.freq_base", 12, 1e300, "rope.freq_base is of type float64"),
        (b"split.tensors.count", 10, 2**40, "split keys are invalid"),
        (b"llama.nextn_predict_layers", U32, 3, "nextn_predict_layers is 3"),
        (b"llama.expert_used_count", U32, 1, "expert_used_count is 1"),
        (b"llama.expert_count", U32, 8, "expert_used_count is 0"),
        (b"llama.expert_group_count", U32, 2, "expert_group_count is 2"),
        (b"llama.rope.scaling.type", STRING, b"magic", "rope.scaling.type is magic"),
        (
            b"llama.attention.layer_norm_rms_epsilon",
            F32,
            -1.0,
            "layer_norm_rms_epsilon is -1.0",
        ),
        (
            b"llama.attention.layer_norm_epsilon",
            F32,
            float("nan"),
            "layer_norm_epsilon is nan",
        ),
        (b"tokenizer.ggml.token_type", I32, [1], "token_type does not match"),
        (b"tokenizer.ggml.tokens", U32, [1], "has no list of tokens"),
        (b"tokenizer.ggml.model", U32, 1, "tokenizer.ggml.model is not text"),
        (b"tokenizer.ggml.bos_token_id", I32, 1, "bos_token_id is of a wrong"),
    ):
        file = gguffile.model()
        change = file.put if isinstance(value, list) else file.add
        assert words in refused(change(key, kind, value).data())


def test_bpe_without_merges() -> None:
    file = gguffile.model(tokenizer=b"gpt2")
    del file.keys[b"tokenizer.ggml.merges"]
    assert "without merges" in refused(file.data())
    data = file.add(b"tokenizer.ggml.pre", STRING, b"kimi-k2").data()
    assert reader.parse(data, len(data)).tokenizer.is_supported


def test_a_text_that_stands_twice() -> None:
    for words, found in [
        ([*WORDS, b"word7"], "tokens 10 and 63 are both 'word7'"),
        # a C string ends there
        ([b"[EMPTY_1]", b""], "tokens 0 and 1 are both '[EMPTY_1]'"),
        ([b"\x1b]0;owned\x07rude", b"\x1b]0;owned\x07rude"], "are both 'rude'"),
    ]:
        assert found in refused(gguffile.model(words).data())


def test_a_file_without_its_end_or_with_too_much() -> None:
    data = gguffile.model().data()
    assert f"is incomplete: {len(data) - 200:,} bytes of" in refused(data[:-200])
    assert "its tensors take" in refused(data + bytes(100_000))
    reader.parse(data + bytes(100), len(data) + 100)
    reader.parse(data[:-200], len(data) - 200, complete=False)


def test_a_header_without_end_is_given_up() -> None:
    """A hundred gigabytes of keys are not read."""
    read = 0

    def more(start: int, end: int) -> bytes:
        nonlocal read
        read = max(read, end)
        return unit * ((end - start) // len(unit) + 1)

    unit = text(b"x" * 1000)
    start = (
        File(n_keys=1).header()[:24]
        + text(b"k")
        + struct.pack("<IIQ", 9, STRING, 9_000_000)
    )
    with pytest.raises(
        gguf.InvalidGgufError, match="header of more than 67,108,864 bytes"
    ):
        gguf.parse(gguf.GgufByteStream(start, 10**11, more))
    assert read <= gguf.MAX_HEADER_BYTES + 2 * MIB


def test_texts_of_any_length_are_kept() -> None:
    # about 255 bytes
    letters = (bytes([65 + i % 26]) * (250 + i % 8) for i in range(50))
    words = [b"y" * 70_000, b"", bytes(7), *letters]
    data = b"".join(map(text, words)) + b"end"
    source = gguf.GgufByteStream(data, len(data))
    assert source.read_strings(len(words), keep=True) == words
    assert source.position == len(data) - 3


LARGE = (
    0,
    1,
    127,
    255,
    256,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def originals() -> list[bytes]:
    """Small headers with every kind of thing in them."""
    spm = gguffile.model().add(
        b"tokenizer.chat_template", STRING, b"{{ messages }}" * 20
    )
    bpe = gguffile.model(
        [b"w%d" % i for i in range(300)], tokenizer=b"gpt2", arch=b"qwen2"
    )
    bpe.add(b"tokenizer.ggml.bos_token_id", U32, 5).add(
        b"tokenizer.ggml.pre", STRING, b"qwen2"
    )
    bpe.tensors = [Tensor(b"blk.%d.w" % i, (32, 8)) for i in range(40)]
    for kind, form in {
        0: 1,
        1: -1,
        2: 9,
        3: -9,
        6: 0.5,
        7: True,
        10: 2**40,
        11: -(2**40),
    }.items():
        bpe.add(b"every.kind.%d" % kind, kind, form)
    bpe.put(b"some.flags", 7, [True, False] * 40)
    long = File().put(b"texts", STRING, [b"t" * (i * 37 % 400) for i in range(200)])
    return [file.data() for file in (spm, bpe, long)]


def spoiled(rng: random.Random, whole: bytes) -> bytes:
    """The same with a few things wrong."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(min(len(data), 6000))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                data[at : at + 8] = struct.pack("<Q", rng.choice(LARGE))
            case 3:
                data[at : at + 4] = struct.pack("<I", rng.choice(LARGE) % 2**32)
            case 4:
                del data[at : at + rng.choice((1, 4, 8, 100))]
            case _:
                data[at:at] = data[at : at + rng.choice((1, 4, 8, 100))]
    if rng.random() < 0.1:
        del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def answer(data: bytes, known: Header) -> str:
    """What becomes of a file; anything else than these is an error of ours."""
    try:
        found = reader.parse(data, len(data), "m.gguf")
    except ModelFileError as error:
        assert error.message.isprintable()
        assert len(error.message) < 400
        return "refused"
    pair_compatibility.check_vocabularies(known.tokenizer, found.tokenizer)
    pair_compatibility.list_warnings(known, found)
    assert None not in (
        found.n_layer,
        found.n_head_kv,
        found.parameters,
        found.quantization,
    )
    assert all(0 <= i < found.tokenizer.n_tokens for i in found.tokenizer.eog_ids)
    return "read"


@pytest.mark.parametrize("count", [500, pytest.param(4_000, marks=pytest.mark.long)])
def test_spoiled_headers(count: int) -> None:
    wholes = originals()
    known = reader.parse(wholes[0], len(wholes[0]))
    answers: Counter[str] = Counter()
    slowest = 0.0
    tracemalloc.start()
    for number in range(count):
        rng = random.Random(f"{count}/{number}")
        data = spoiled(rng, rng.choice(wholes))
        started = time.process_time()
        answers[answer(data, known)] += 1
        slowest = max(slowest, time.process_time() - started)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answers.total() == count
    assert min(answers["refused"], answers["read"]) > count // 20  # both ways are tried
    assert slowest < 2  # no hang; one of them takes a millisecond
    assert peak < 50 * MIB
