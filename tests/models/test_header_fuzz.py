"""Headers spoiled at random: there is always an answer, soon, in little memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections import Counter
from contextlib import suppress

import pytest

from localspec.errors import ModelFileError
from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, File, Tensor

MIB = 1024**2
LARGE = (0, 1, 127, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def originals() -> list[bytes]:
    """Small headers with every kind of thing in them."""
    spm = gguffile.model().add(b"tokenizer.chat_template", STRING, b"{{ messages }}" * 20)
    bpe = gguffile.model([b"w%d" % i for i in range(300)], tokenizer=b"gpt2", arch=b"qwen2")
    bpe.add(b"tokenizer.ggml.bos_token_id", U32, 5).add(b"tokenizer.ggml.pre", STRING, b"qwen2")
    bpe.tensors = [Tensor(b"blk.%d.w" % i, (32, 8)) for i in range(40)]
    for kind, form in {0: 1, 1: -1, 2: 9, 3: -9, 6: 0.5, 7: True, 10: 2**40, 11: -(2**40)}.items():
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
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data)


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
    facts = (found.n_layer, found.n_head, found.n_head_kv, found.parameters, found.quantization)
    assert len(facts) == 5
    assert all(0 <= i < found.tokenizer.n_tokens for i in found.tokenizer.eog_ids)
    return "read"


def fuzz(count: int, seed: int) -> None:
    wholes = originals()
    known = reader.parse(wholes[0], len(wholes[0]))
    answers: Counter[str] = Counter()
    slowest = 0.0
    tracemalloc.start()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
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


def test_spoiled_headers() -> None:
    fuzz(500, seed=1)


@pytest.mark.long
def test_ten_thousand_spoiled_headers() -> None:
    fuzz(10_000, seed=2)


def test_a_short_file_that_claims_to_be_long() -> None:
    """No memory is set aside for what a file only says it has."""
    wholes = originals()
    tracemalloc.start()
    for number in range(200):
        rng = random.Random(f"range/{number}")
        data = spoiled(rng, rng.choice(wholes))
        with suppress(ModelFileError):
            reader.parse(data, 10**12)
    assert tracemalloc.get_traced_memory()[1] < 50 * MIB
    tracemalloc.stop()
