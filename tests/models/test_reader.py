"""Files that are no GGUF, told in their own words before llama.cpp opens them."""

import errno
import io
import json
import os
import struct
import sys
from pathlib import Path

import pytest

from localspec.errors import LocalspecError, ModelFileError, NotFoundError, StorageError
from localspec.models.gguf import reader
from localspec.models.gguf.header import SplitInfo
from tests.models import gguffile
from tests.models.gguffile import BOOL, STRING, U16, U32
from tests.support.zoo import Zoo


def head(version: int = 3, tensors: int = 5, keys: int = 7, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, keys) + bytes(64)


def failure_of(path: Path) -> LocalspecError:
    with pytest.raises(LocalspecError) as failure:
        reader.check_loadable(path)
    assert failure.value.hint
    assert failure.value.message.isprintable()
    return failure.value


def written(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


OTHER_TYPE = gguffile.File(tensors=[gguffile.Tensor(kind=36)])
CONTENTS: list[tuple[bytes, str]] = [
    (b"", "is empty"), (b"GGUF", "is incomplete: 4 bytes"),
    (head()[:23], "is incomplete: 23 bytes"), (b"hello, I am no model\n", "is a text file"),
    (bytes(100), "is not a GGUF file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "git-lfs pointer"),
    (b"PK\x03\x04" + bytes(60), "PyTorch archive"), (b"\x80\x02}q\x00", "pickle"),
    (b"<!doctype html><html>", "is a web page"), (head(version=1), "GGUF v1"),
    (head(version=99), "GGUF v99"), (head(version=3, order=">"), "is a big-endian file"),
    (head(tensors=2**63), "damaged header"), (head(tensors=0), "vocabulary only"),
]  # fmt: skip


def test_what_it_is_instead(tmp_path: Path) -> None:
    for content, words in CONTENTS:
        error = failure_of(written(tmp_path, content, "\x1b]0;owned\x07bad\u202e.gguf"))
        assert isinstance(error, ModelFileError)
        assert words in error.message
        assert error.message.startswith("bad\ufffd.gguf ")
    for file in (*(gguffile.File(version=n) for n in (1, 4, 3 << 24)), OTHER_TYPE):
        error = failure_of(written(tmp_path, file.data()))
        assert "Use another file of this model" in error.hint, "it is intact"


def test_a_part_that_has_to_be_joined(tmp_path: Path) -> None:
    for name, content in (
        ("Tess.gguf.part1of2", head()),
        ("Tess.gguf.part2of2", b"\x01\x02"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        error = failure_of(path)
        assert "is one of 2 parts of a file" in error.message
        assert error.hint.endswith("cat Tess.gguf.part1of2 … > Tess.gguf")


@pytest.mark.timeout(20)
def test_what_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    loop = tmp_path / "loop.gguf"
    link.symlink_to(tmp_path / "gone.gguf")
    loop.symlink_to(loop)
    for path in (
        link,
        *(tmp_path / f"{name}.gguf" for name in ("\x1b[2Jx", "\ud800", "a\0b")),
    ):
        assert isinstance(failure_of(path), NotFoundError)
    for path in (loop, Path("a" * 5000 + ".gguf")):
        assert isinstance(failure_of(path), StorageError)
    assert "is a directory" in failure_of(tmp_path).message
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe.gguf")
        for path in (tmp_path / "pipe.gguf", Path("/dev/zero")):
            assert "not a regular file" in failure_of(path).message


def test_facts_of_a_file(tmp_path: Path) -> None:
    file = gguffile.model().add(b"tokenizer.chat_template", STRING, b"{{ messages }}")
    file.add(b"llama.expert_count", U32, 4).add(b"llama.expert_used_count", U32, 2)
    file.version = 2  # the oldest that is read
    facts = reader.read(written(tmp_path, file.data()))
    assert facts.architecture == "llama"
    assert facts.name == "Tiny"
    assert facts.quantization == "Q4_K_M"
    assert facts.n_layer == 2
    assert facts.n_ctx_train == 512
    assert facts.n_embd == 32
    assert facts.n_head == 4
    assert facts.n_head_kv == 4
    assert facts.is_moe is True
    assert facts.parameters == 32 * 63
    assert facts.weight_bytes == 4 * 32 * 63
    assert facts.is_recurrent is False
    assert facts.is_hybrid is False
    assert facts.split is None
    assert facts.chat_template == "{{ messages }}"
    assert facts.data_offset == len(file.header()) + -len(file.header()) % 32
    assert facts.data_offset % 32 == 0
    assert facts.tensors[0].type_name == "F32"
    assert facts.unsupported_reason == ""
    file = gguffile.model(tokenizer=b"gpt2").add(
        b"tokenizer.ggml.pre", STRING, b"\x1b[2Jnew"
    )
    facts = reader.parse(file.data(), len(file.data()))
    assert (
        facts.unsupported_reason
        == "its tokenizer 'gpt2 new' is unknown to this llama.cpp"
    )


new_process = reader._read_cached.cache_clear
"""Forgets what this process has read."""


@pytest.mark.parametrize("name", ["hybrid", "chatty", "eagle3", "no-tokenizer"])
def test_a_cached_header_is_the_same(
    zoo: Zoo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the texts, which are read from the file when they are needed."""
    new_process()
    first = reader.read(zoo[name])
    new_process()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_read_file", None)
        again = reader.read(zoo[name])
    assert again == first
    assert again is not first
    assert type(again.tensors[0]) is type(first.tensors[0])
    assert again.tokenizer.read_texts() == first.tokenizer.read_texts()


def test_a_damaged_cache_counts_as_none(tmp_path: Path) -> None:
    path = written(tmp_path, gguffile.model().data())
    first = reader.read(path)
    (cached,) = (tmp_path / "data/headers").iterdir()
    body = json.loads(cached.read_bytes())
    body["header"] = body["header"].replace('"size": ', '"size": 1')
    for damaged in (b"", b"[]", b'{"key": 1, "header": {}}', json.dumps(body).encode()):
        cached.write_bytes(damaged)
        new_process()
        assert reader.read(path) == first
        assert cached.read_bytes() != damaged


def test_the_cache_is_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile header of control characters takes six bytes for each in JSON."""
    monkeypatch.setattr(reader, "_MAX_CACHE_BYTES", 30_000)
    monkeypatch.setattr(reader, "_MAX_CACHED_TEXT", 3_000)
    new_process()
    for n in range(12):
        file = gguffile.model().add(b"some.text", STRING, b"\x01" * 500 * n)
        reader.read(written(tmp_path, file.data(), f"{n}.gguf"))
        size = sum(
            path.stat().st_size for path in (tmp_path / "data/headers").iterdir()
        )
        assert size <= 30_000
    assert size > 0


def test_a_changed_files_cached_header(tmp_path: Path) -> None:
    path = written(tmp_path, gguffile.model().data())
    reader.read(path)
    os.utime(path, ns=(1, 1))
    path.write_bytes(path.read_bytes()[:-1])
    new_process()
    assert "is incomplete" in failure_of(path).message
    path.write_bytes(gguffile.model().data().replace(b"Tiny", b"Tall"))
    assert reader.read(path).name == "Tall"


def test_a_long_header_is_read_once_and_no_further() -> None:
    file = gguffile.model([b"word %d" % i for i in range(150_000)], tokenizer=b"gpt2")
    file.put(
        b"tokenizer.ggml.merges", STRING, [b"some merge %d" % i for i in range(150_000)]
    )
    data = file.data()
    whole = reader.parse(data, len(data))
    reads: list[tuple[int, int]] = []

    def read_more(start: int, end: int) -> bytes:
        reads.append((start, end))
        return data[start:end]

    for size in (4, 24, 100, 1_000_000, whole.data_offset - 32):
        reads.clear()
        assert reader.parse(data[:size], len(data), read_more=read_more) == whole
        assert reads[0][0] == size
        assert reads[-1][1] < whole.data_offset + 2**20
        assert [start for start, _ in reads[1:]] == [end for _, end in reads[:-1]]


def part(number: int, count: int = 3) -> bytes:
    file = gguffile.model()
    file.add(b"split.no", U16, number).add(b"split.count", U16, count)
    return file.data()


def test_the_first_part_stands_for_all(tmp_path: Path) -> None:
    names = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    first, second, third = (
        written(tmp_path, part(number), name) for number, name in enumerate(names)
    )
    reader.check_loadable(first)
    assert reader.read(second).split == SplitInfo(1, 3, 0)
    assert names[0] in failure_of(second).hint
    third.rename(tmp_path / "renamed.gguf")
    assert "is part 3 of 3, renamed" in failure_of(tmp_path / "renamed.gguf").message
    assert f"needs {names[2]}, which is missing" in failure_of(first).message


def test_a_bos_that_is_to_be_added_and_is_not_there(tmp_path: Path) -> None:
    file = gguffile.model(tokenizer=b"gemma4").add(
        b"tokenizer.ggml.add_bos_token", BOOL, False
    )
    assert "has none" in failure_of(written(tmp_path, file.data())).message


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    adapter = gguffile.model().add(b"general.type", STRING, b"adapter")

    error = failure_of(written(tmp_path, adapter.data()))

    assert "is an adapter (LoRA)" in error.message


def test_a_model_whose_architecture_writes_no_text_is_refused(tmp_path: Path) -> None:
    for arch, words in [
        ("bert", "is an embedding or reranker model"),
        ("whisper", "is a speech model: whisper"),
        ("flux", "generates images"),
        ("dream", "is a diffusion model"),
        ("t5", "is an encoder-decoder model"),
    ]:
        error = failure_of(written(tmp_path, gguffile.model(arch=arch.encode()).data()))
        assert isinstance(error, ModelFileError)
        assert words in error.message


def test_a_model_that_embeds_texts_is_refused_by_its_keys(tmp_path: Path) -> None:
    for key, kind, embeds, writes in [
        (b"llama.pooling_type", U32, 1, 0),
        (b"llama.pooling_type", U32, 4, 0),
        (b"llama.attention.causal", BOOL, False, True),
    ]:
        file = gguffile.model().add(key, kind, embeds)
        error = failure_of(written(tmp_path, file.data()))
        assert "embedding or reranker" in error.message
        reader.check_loadable(written(tmp_path, file.add(key, kind, writes).data()))


def test_a_disk_that_went_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a network drive that went away: the system's own words, and which file."""

    class LostFile(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    path = written(tmp_path, gguffile.model().data())
    monkeypatch.setattr(Path, "open", lambda *_, **__: LostFile())
    error = failure_of(path)
    assert isinstance(error, StorageError)
    assert error.message == "model.gguf cannot be read: Input/output error."
