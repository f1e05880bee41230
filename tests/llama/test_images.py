"""Pictures in a context: read as libmtmd reads them, cut, copied, stopped.

`test_a_planted_bug_is_found` plants bugs that give wrong logits without an error; each
must fail one of these checks.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.errors import EngineError, LocalspecError, ModelFileError, UsageError
from localspec.llama import images
from localspec.llama.batch import LlamaBatch
from localspec.llama.context import ContextCheckpoints, LlamaContext
from localspec.llama.images import ImageRows, Projector, join_items, turn_upright
from localspec.llama.library import C
from localspec.machine.llama_params import ModelRole
from localspec.models import projector_kinds, projector_shape
from localspec.models.gguf import reader
from localspec.models.projector_check import check_projector
from localspec.spec import heartbeat
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import DecodeInterrupted, HiddenStates, Logits
from tests.spec.test_mutants import plant
from tests.support import ghost_projectors
from tests.support.picture_prompts import (
    PICTURE_SETTINGS,
    PICTURES,
    SMALL,
    TALL,
    WIDE,
    Part,
    SeeingModel,
    picture_places,
    seeing_model,
    shown_ids,
)
from tests.support.vision_models import KINDS, VisionModels, bmp, noise, png, tower

TOLERANCE = 0.02
"""Passes of other widths round differently; a wrong position moves logits by 0.1."""
M_ROPE = ("qwen2vl", "qwen3vl", "qwen35")
CHAT: tuple[Part, ...] = ("user: see ", WIDE, " and ", TALL, " what is it?")

Check = Callable[[VisionModels, str], None]


def assert_near(row: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(row, expected, rtol=0, atol=TOLERANCE)


# --- equal to libmtmd


def check_prompts(models: VisionModels, kind: str) -> None:
    """Tokens, positions and logits are those of libmtmd's own path, to the bit."""
    alone = [(each,) for each in PICTURES]
    prompts: list[tuple[Part, ...]] = [("user: ", *each, "what?") for each in alone]
    for first, second in combinations(PICTURES, 2):
        prompts.append(("user: ", first, " and ", second, "what?"))
    with seeing_model(models, kind) as model:
        for parts in prompts:
            expected_ids, expected_position, expected = model.read_by_libmtmd(*parts)
            ids = model.prompt(*parts)
            row = model.read_anew(ids)
            assert shown_ids(ids) == expected_ids
            assert model.context.position(len(ids)) == expected_position
            np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_read_as_libmtmd_reads_it(
    vision_models: VisionModels, kind: str
) -> None:
    check_prompts(vision_models, kind)


# --- cuts


def check_cuts(models: VisionModels, kind: str) -> None:
    """Wherever a text is cut, what is left is whole, and the text is read on alike."""
    with seeing_model(models, kind, snapshots=6) as model:
        context = model.context
        ids = model.prompt(*CHAT)
        inside = set[int]()
        in_the_middle = set[int]()
        for start, end in picture_places(ids):
            inside |= set(range(start + 1, end))
            in_the_middle |= set(range(start + 3, end - 1))
        expected = model.read_anew(ids)
        for cut in sorted(set(range(len(ids))) - in_the_middle):
            context.truncate(cut)
            assert context.n_past <= cut
            assert context.n_past not in inside
            assert_near(model.read(ids), expected)


def check_cuts_of_what_was_just_read(models: VisionModels, kind: str) -> None:
    """A recurrent memory can drop tokens of the last pass; a picture it cannot.

    All rows of a picture are at one position, so llama.cpp takes a cut before it for a
    rollback by one token, and has no snapshot of that place.
    """
    with seeing_model(models, kind, snapshots=6) as model:
        ids = model.prompt(*CHAT)
        expected = model.read_anew(ids)
        for start, end in picture_places(ids):
            for n_read in (end, end + 1, end + 3):
                for cut in (start, end):
                    model.read_anew(ids[:n_read])
                    model.context.truncate(cut)
                    assert_near(model.read(ids), expected)


@pytest.mark.parametrize("check", [check_cuts, check_cuts_of_what_was_just_read])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_cut_anywhere(
    vision_models: VisionModels, kind: str, check: Check
) -> None:
    check(vision_models, kind)


def check_checkpoints(models: VisionModels, kind: str) -> None:
    """A memory that cannot be cut returns to a checkpoint beside a picture."""
    settings = replace(PICTURE_SETTINGS, swa_full=False)
    with seeing_model(models, kind, snapshots=6, settings=settings) as model:
        context = model.context
        context.saves_checkpoints = True
        ids = model.prompt(*CHAT)
        expected = model.read_anew(ids)
        later = [40 + i % 7 for i in range(90)]
        for start, end in picture_places(ids):
            for saved_at in (start, end, end + 1):
                model.read_anew(ids[:saved_at])
                assert context.save_checkpoint()
                model.read(ids)
                for i in (0, 30, 60):
                    context.decode(later[i : i + 30], 0)
                context.truncate(len(ids) - 1)
                assert context.n_past in (saved_at, len(ids) - 1)
                assert_near(model.read(ids), expected)


@pytest.mark.parametrize("kind", ["qwen35", "gemma3", "gemma4"])
def test_a_checkpoint_is_restored_beside_a_picture(
    vision_models: VisionModels, kind: str
) -> None:
    check_checkpoints(vision_models, kind)


def test_no_checkpoint_is_inside_a_picture(vision_models: VisionModels) -> None:
    with seeing_model(vision_models, "qwen35", snapshots=6) as model:
        ids = model.prompt(*CHAT)
        start, end = picture_places(ids)[0]
        model.read_anew(ids[: start + 2])
        assert not model.context.save_checkpoint()
        model.read(ids[:end])
        assert model.context.save_checkpoint()


def check_snapshots(models: VisionModels, kind: str) -> None:
    """A chat that left the memory comes back with its pictures."""
    with seeing_model(models, kind, snapshots=6) as model:
        context = model.context
        first = model.prompt(*CHAT)
        second = model.prompt("other ", SMALL, " text")
        expected = model.read_anew([*first, 50, 51])
        model.read_anew(first)
        state = context.save_state()
        model.read_anew(second)
        assert context.restore_state(state, len(first))
        assert_near(model.read([*first, 50, 51]), expected)
        start, _ = picture_places(first)[1]
        context.truncate(start)
        assert_near(model.read([*first, 50, 51]), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_memory_has_its_pictures(
    vision_models: VisionModels, kind: str
) -> None:
    check_snapshots(vision_models, kind)


# --- the cache


def count_passes(model: SeeingModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cells of each call of the context's `decode`, from now on."""
    cells: list[int] = []
    decode = model.context.decode

    def counting(tokens: Sequence[int], outputs: int) -> Logits:
        cells.append(len(tokens))
        return decode(tokens, outputs)

    monkeypatch.setattr(model.context, "decode", counting)
    return cells


def read_all(cache: PrefixCache, ids: list[int]) -> Logits:
    """The logits after a text, read as the loop reads a prompt."""
    cache.rewind_to(ids)
    for _ in cache.prefill(ids, lambda: False):
        pass
    for _ in cache.prefill_until(ids, cache.model.n_batch, lambda: False):
        pass
    row: Logits = cache.decode(ids[cache.n_cached :], 1)[0].copy()
    return row


@pytest.mark.parametrize(
    ("kind", "n_ubatch"),
    [*product(KINDS, (128, 512)), *product(("smolvlm", "gemma3", *M_ROPE), (32, 48))],
)
def test_no_pass_ends_inside_a_picture(
    vision_models: VisionModels,
    kind: str,
    n_ubatch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(PICTURE_SETTINGS, n_ubatch=n_ubatch)
    with (
        seeing_model(vision_models, kind, snapshots=6) as reference,
        seeing_model(vision_models, kind, snapshots=6, settings=settings) as model,
    ):
        context = model.context
        saves = context.save_checkpoint if context.saves_checkpoints else None
        cache = PrefixCache(context, saves, context.rollback)
        cells = count_passes(model, monkeypatch)
        for n_before in (0, 9, 17, 30):
            parts: tuple[Part, ...] = ("a" * n_before, WIDE, "b" * 20, TALL, "c" * 7)
            ids = model.prompt(*parts)
            assert ids == reference.prompt(*parts), "ids count from one picture on"
            cache.rewind_to([0])
            context.truncate(0)
            cells.clear()
            row = read_all(cache, ids)
            ends = [sum(cells[: i + 1]) for i in range(len(cells))]
            assert ends[-1] == len(ids)
            for start, end in picture_places(ids):
                fits = end - start <= context.n_batch
                assert not fits or not any(start < each < end for each in ends)
            assert_near(row, reference.read_anew(ids))


def test_the_next_turn_reads_no_picture_again(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeing_model(vision_models, "qwen2vl") as model:
        cache = PrefixCache(model.context)
        encoded = count_encodes(model.projector, monkeypatch)
        first = model.prompt(*CHAT)
        read_all(cache, first)
        assert len(encoded) == 2
        cells = count_passes(model, monkeypatch)
        second = [*first, *model.prompt(" more?")]
        row = read_all(cache, second)
        assert len(encoded) == 2
        assert sum(cells) < 12
        assert_near(row, model.read_anew(second))


def test_another_picture_of_the_same_size_is_another(
    vision_models: VisionModels,
) -> None:
    with seeing_model(vision_models, "gemma3") as model:
        cache = PrefixCache(model.context)
        first = model.prompt("see ", SMALL, " what?")
        other = model.prompt("see ", noise(40, 40, seed=9), " what?")
        again = model.prompt("see ", SMALL.copy(), " what?")
        start, _ = picture_places(first)[0]
        assert len(first) == len(other)
        assert first == again
        read_all(cache, first)
        assert cache.count_shared(other) == start
        row = read_all(cache, other)
        assert np.abs(row - model.read_anew(first)).max() > 0.1
        assert_near(row, model.read_anew(other))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_picture_may_come_twice(
    vision_models: VisionModels, kind: str
) -> None:
    parts: tuple[Part, ...] = ("see ", SMALL, SMALL, " x ", SMALL, " what?")
    with seeing_model(vision_models, kind) as model:
        expected_ids, position, expected = model.read_by_libmtmd(*parts)
        ids = model.prompt(*parts)
        assert shown_ids(ids) == expected_ids
        np.testing.assert_array_equal(model.read_anew(ids), expected)
        assert model.context.position(len(ids)) == position


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_may_begin_and_end_with_a_picture(
    vision_models: VisionModels, kind: str
) -> None:
    with seeing_model(vision_models, kind, snapshots=6) as model:
        whole = model.prompt(SMALL, "and then ", WIDE)
        places = picture_places(whole)
        ids = whole[: places[-1][1]]
        cache = PrefixCache(model.context)
        row = read_all(cache, ids)
        assert_near(read_all(cache, ids), row)
        assert_near(model.read_anew(ids), row)
        rows = model.context
        rows.truncate(0)
        logits = rows.decode([*ids, 40, 41], 3)
        assert_near(logits[0], row)


@pytest.mark.parametrize("kind", M_ROPE)
def test_a_picture_longer_than_a_pass_is_read_in_several(
    vision_models: VisionModels, kind: str
) -> None:
    """It may be left there, too, and read on or not."""
    large = noise(300, 220, seed=4)
    settings = replace(PICTURE_SETTINGS, n_ubatch=48)
    with seeing_model(vision_models, kind, settings=settings, snapshots=6) as model:
        ids = model.prompt("see ", large, " what is it?")
        start, end = picture_places(ids)[0]
        assert end - start > 3 * 48
        _, _, expected = model.read_by_libmtmd("see ", large, " what is it?")
        cache = PrefixCache(model.context, None, model.context.rollback)
        assert_near(read_all(cache, ids), expected)
        cache.rewind_to([0])
        model.context.truncate(0)
        cache.rewind_to(ids)
        reading = cache.prefill(ids, lambda: False)
        for _ in range(2):
            next(reading)
        assert start < model.context.n_past < end
        assert_near(read_all(cache, ids), expected)
        other = model.prompt("see nothing")
        assert_near(read_all(cache, other), model.read_anew(other))


# --- what is refused


def test_a_picture_that_must_be_read_whole_and_does_not_fit_is_refused(
    vision_models: VisionModels,
) -> None:
    """llama.cpp would abort the process."""
    settings = replace(PICTURE_SETTINGS, n_ubatch=32)
    with seeing_model(vision_models, "gemma4", settings=settings) as model:
        assert model.projector.max_rows <= 32
        assert model.projector.count(2000, 2000) <= 34
        ids = model.prompt("see ", noise(300, 300), " what?")
        assert model.read_anew(ids).shape == (model.context.n_vocab,)
        start, end = picture_places(ids)[0]
        model.context.truncate(0)
        with pytest.raises(EngineError, match="rows of a picture"):
            model.context.decode(ids[: end - 1], 0)
        assert model.context.n_past <= start
        model.context.truncate(0)
        with pytest.raises(EngineError, match="first row"):
            model.context.decode(ids[start + 1 :], 0)
        with pytest.raises(EngineError, match="no picture"):
            model.context.decode([3, -1000], 0)
    projector = tower("gemma3")
    path = vision_models.folder / "mmproj-many-rows.gguf"
    projector.keys["projector.scale_factor"] = 2
    projector.write(path)
    role = ModelRole(settings, 8, 0)
    with (
        closing(LlamaContext(vision_models["gemma3"].model, role)) as context,
        pytest.raises(UsageError, match=r"64 rows.*one pass"),
    ):
        Projector(path, context, kind="gemma3")


@pytest.mark.parametrize(
    ("kind", "projector"),
    [
        ("gemma3", "gemma4"),
        ("gemma3", "qwen2vl"),
        ("gemma3", "smolvlm"),
        ("qwen2vl", "gemma3"),
        ("smolvlm", "qwen2vl"),
    ],
)
def test_the_projector_of_another_model_is_refused(
    vision_models: VisionModels, kind: str, projector: str
) -> None:
    """Also one of the same width, of which only what is around a picture tells."""
    path = vision_models[projector].projector
    role = ModelRole(PICTURE_SETTINGS, 8, 0)
    with (
        closing(LlamaContext(vision_models[kind].model, role)) as context,
        pytest.raises(ModelFileError, match=path.name),
    ):
        Projector(path, context, kind=tower(projector).kind)


@pytest.mark.parametrize("cut", [0, 700, -3000])
def test_a_damaged_projector_is_refused(
    vision_models: VisionModels, cut: int, tmp_path: Path
) -> None:
    files = vision_models["gemma3"]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(files.projector.read_bytes()[:cut])
    role = ModelRole(PICTURE_SETTINGS, 8, 0)
    with (
        closing(LlamaContext(files.model, role)) as context,
        pytest.raises(ModelFileError, match=r"damaged\.gguf"),
    ):
        Projector(path, context, kind="gemma3")


def test_kinds_that_depend_on_the_text_or_speak_are_refused(
    vision_models: VisionModels, tmp_path: Path
) -> None:
    """By the check of a header, and by the projector itself."""
    files = vision_models["gemma3"]
    role = ModelRole(PICTURE_SETTINGS, 8, 0)
    refused = [name for name, kind in projector_kinds.KINDS.items() if kind.why_refused]
    speaking = ["pockettts_spkenc", "qwen3tts_spkenc"]
    assert refused == ["deepseek4v", "hunyuanvl", *speaking]
    with closing(LlamaContext(files.model, role)) as context:
        for kind in refused:
            header = ghost_projectors.read_header(ghost_projectors.tiny(kind), tmp_path)
            with pytest.raises(ModelFileError, match=kind):
                check_projector(header, "mmproj.gguf")
            with pytest.raises(ModelFileError, match=kind):
                Projector(files.projector, context, kind=kind)


LIMITED_KINDS = [
    name for name, kind in projector_kinds.KINDS.items() if not kind.why_refused
]


class FakeLibrary:
    """libmtmd, which notes what it is told and loads nothing."""

    def __init__(self) -> None:
        self._mtmd = images.load_library()
        self.told_rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mtmd, name)

    def mtmd_init_from_file(self, _name: bytes, _model: Any, params: Any) -> None:
        assert params.image_min_tokens <= params.image_max_tokens
        self.told_rows.append(params.image_max_tokens)


@pytest.mark.parametrize("kind", LIMITED_KINDS)
def test_fit_counts_the_rows_that_llama_cpp_is_told(
    vision_models: VisionModels,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each kind of the table, by the kind that its file says."""
    header = ghost_projectors.read_header(ghost_projectors.tiny(kind), tmp_path)
    shape = projector_shape.from_header(header)
    fake = FakeLibrary()
    monkeypatch.setattr(images, "load_library", lambda: fake)
    for n_batch, max_rows in product((512, 2048), (None, 300, 5000)):
        settings = replace(PICTURE_SETTINGS, n_ubatch=n_batch, n_ctx=2048)
        role = ModelRole(settings, 8, 0)
        with closing(LlamaContext(vision_models["gemma3"].model, role)) as context:
            assert context.n_batch == n_batch
            for on_gpu in (False, True):
                with pytest.raises(ModelFileError, match="gave no reason"):
                    Projector(
                        tmp_path / "mmproj.gguf",
                        context,
                        kind=projector_kinds.projector_kind(header),
                        on_gpu=on_gpu,
                        max_rows=max_rows,
                    )
                rows = shape.rows(on_gpu=on_gpu, n_batch=n_batch, limit=max_rows)
                if shape.kind.most_rows:
                    assert fake.told_rows.pop() == rows
                else:  # Of one size.
                    assert rows == (64 // 4) ** 2 // shape.patches_per_row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_rows", [None, 100])
def test_a_large_picture_has_the_rows_that_fit_counts(
    vision_models: VisionModels, kind: str, max_rows: int | None
) -> None:
    """But for a few, as whole rows of patches do not fill every limit."""
    shape = projector_shape.from_header(reader.read(vision_models[kind].projector))
    with seeing_model(vision_models, kind, max_rows=max_rows) as model:
        n_batch = model.context.n_batch
        expected = shape.rows(on_gpu=False, n_batch=n_batch, limit=max_rows)
        items = model.projector.items(noise(2000, 2000))
    rows = max(item.n_rows for item in items if isinstance(item, ImageRows))
    assert 0.9 * expected <= rows <= expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_is_counted_as_it_is_read(
    vision_models: VisionModels, kind: str
) -> None:
    with seeing_model(vision_models, kind) as model:
        for width, height in ((1, 1), (8, 8), (300, 200), (64, 700), (900, 20)):
            try:
                n_cells = model.projector.count(width, height)
            except UsageError:
                continue
            items = model.prompt("", noise(width, height))
            assert n_cells == len(items) - len(model.prompt(""))
            if n_cells < 900:
                model.read_anew(items)


@pytest.mark.parametrize("kind", ["qwen2vl", "qwen3vl", "gemma4"])
def test_rows_can_be_limited(vision_models: VisionModels, kind: str) -> None:
    with seeing_model(vision_models, kind, max_rows=16) as model:
        ids = model.prompt("see ", noise(700, 500), " what?")
        start, end = picture_places(ids)[0]
        assert end - start <= 16
        model.read_anew(ids)


# --- computing rows


def count_encodes(projector: Projector, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each picture or tile that is computed from now on."""
    encoded: list[int] = []
    encode = projector._encode_chunk

    def counting(chunk: object, rows: ImageRows) -> HiddenStates:
        encoded.append(rows.n_rows)
        return encode(chunk, rows)

    monkeypatch.setattr(projector, "_encode_chunk", counting)
    return encoded


def test_rows_are_computed_when_they_are_read(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeing_model(vision_models, "smolvlm") as model:
        projector = model.projector
        encoded = count_encodes(projector, monkeypatch)
        ids = model.prompt(*CHAT)
        waiting = projector.unencoded(ids)
        assert len(waiting) == len(picture_places(ids))
        assert not encoded
        waiting[0].load_states()
        assert 1 < len(encoded) < len(waiting), "all tiles of the first picture"
        assert len(projector.unencoded(ids)) == len(waiting) - len(encoded)
        model.read_anew(ids)
        model.read_anew(ids)
        assert len(encoded) == len(waiting)
        assert projector.unencoded(ids) == []


def test_rows_that_were_used_longest_ago_leave_the_memory(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeing_model(vision_models, "qwen2vl") as model:
        projector = model.projector
        ids = [model.prompt("see ", each, " what?") for each in PICTURES]
        sizes = [end - start for each in ids for start, end in picture_places(each)]
        row_bytes = 4 * model.context.model.n_embd_inp
        projector._max_state_bytes = row_bytes * (sum(sizes) - 1)
        encoded = count_encodes(projector, monkeypatch)
        expected = [model.read_anew(each) for each in ids]
        assert len(encoded) == 3
        assert not projector.unencoded(ids[1] + ids[2])
        assert len(projector.unencoded(ids[0])) == 1
        np.testing.assert_array_equal(model.read_anew(ids[0]), expected[0])
        assert len(encoded) == 4
        assert len(projector.unencoded(ids[1])) == 1
        assert projector._state_bytes <= projector._max_state_bytes


# --- many pictures


def send(projector: Projector, n: int) -> list[int]:
    """The ids of picture n of many, in memory of their own."""
    width = 20 + n % 71
    height = 20 + n % 83
    items = projector.read_picture(str(n), width, height, lambda: SMALL)
    ids: list[int] = np.array(join_items(items)).tolist()
    return ids


@pytest.mark.parametrize(("kind", "n_pictures"), [("qwen3vl", 5000), ("smolvlm", 1000)])
def test_the_memory_for_pictures_does_not_grow_with_all_that_were_sent(
    vision_models: VisionModels, kind: str, n_pictures: int
) -> None:
    """But by a key and a number; equal pictures have equal ids, however late."""
    rng = np.random.default_rng(6)
    ids_by_picture: dict[int, list[int]] = {}
    n_bytes: list[int] = []
    with seeing_model(vision_models, kind) as model:
        projector = model.projector
        tracemalloc.start()
        for n in range(n_pictures):
            ids_by_picture[n] = send(projector, n)
            again = int(rng.integers(n + 1))
            assert send(projector, again) == ids_by_picture[again]
            if n in (n_pictures // 2, n_pictures - 1):
                gc.collect()
                ours = tracemalloc.Filter(True, images.__file__)
                found = tracemalloc.take_snapshot().filter_traces([ours])
                n_bytes.append(sum(each.size for each in found.statistics("filename")))
                assert projector._cost <= projector._max_cost
                assert len(projector._known) == projector.n_recent
        tracemalloc.stop()
        own_ids = [
            {token for token in ids if token < 0} for ids in ids_by_picture.values()
        ]
    assert n_bytes[1] - n_bytes[0] < 400 * n_pictures / 2
    assert n_bytes[1] < 16e6
    assert len(set[int]().union(*own_ids)) == sum(map(len, own_ids)), "all differ"


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_sent_long_ago_is_read_rightly_again(
    vision_models: VisionModels, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_COST_PER_CELL", 1)
    with seeing_model(vision_models, kind) as model:
        context = model.context
        context.saves_checkpoints = True
        ids = model.prompt(*CHAT)
        places = picture_places(ids)
        expected = model.read_anew(ids)
        for n in range(400):
            send(model.projector, n)

        assert all(ids[start] in model.projector._rows for start, _ in places)
        context.truncate(len(ids) - 3)
        assert_near(model.read(ids), expected)

        context.truncate(0)
        gc.collect()
        assert not any(ids[start] in model.projector._rows for start, _ in places)
        assert model.prompt(*CHAT) == ids
        assert_near(model.read(ids), expected)


@pytest.mark.parametrize("kind", ["smolvlm", "gemma3", "qwen35"])
def test_computing_rows_can_be_stopped(
    vision_models: VisionModels,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """At every place where it is asked; then the next picture is whole."""
    with seeing_model(vision_models, kind) as model:
        context = model.context
        projector = model.projector
        ids = model.prompt(*CHAT)
        expected = model.read_anew(ids)
        n_asked = 0
        stop_at = 0

        def is_interrupted() -> bool:
            nonlocal n_asked
            n_asked += 1
            return n_asked >= stop_at

        capfd.readouterr()
        for each in (*range(1, 12), *range(12, 500, 9)):
            stop_at = each
            n_asked = 0
            projector._states.clear()
            projector._state_bytes = 0
            context.is_interrupted = lambda: False
            context.truncate(0)
            context.is_interrupted = is_interrupted
            try:
                row = model.read(ids)
            except DecodeInterrupted:
                assert context.n_past <= len(ids)
                context.is_interrupted = lambda: False
                assert_near(model.read(ids), expected)
            else:
                assert_near(row, expected)
                break
        assert stop_at > 3, "it was asked more than once"
        assert capfd.readouterr().err == ""


def test_computing_rows_shows_that_it_lives(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    with seeing_model(vision_models, "gemma3") as model:
        waiting = model.projector.unencoded(model.prompt("see ", SMALL))
        monkeypatch.setattr(
            heartbeat, "record_progress", lambda: beats.append(time.monotonic())
        )
        waiting[0].load_states()
    assert len(beats) > 2


def test_a_stopped_pass_of_a_picture_leaves_nothing_of_it(
    vision_models: VisionModels,
) -> None:
    """Also not that later passes attend to what is behind them."""
    for kind in KINDS:
        with seeing_model(vision_models, kind, snapshots=6) as model:
            context = model.context
            ids = model.prompt("see ", noise(400, 300), " what is it?")
            start, end = picture_places(ids)[0]
            assert end - start > 0
            expected = model.read_anew(ids)
            context.truncate(0)
            model.read(ids[:start])
            context.is_interrupted = lambda: True
            if end - start > 32:
                with pytest.raises(DecodeInterrupted):
                    context.decode(ids[start:], 1)
                assert context.n_past <= start
            context.is_interrupted = lambda: False
            assert_near(model.read(ids), expected)


# --- pixels


def test_files_are_decoded_to_pixels(vision_models: VisionModels) -> None:
    with seeing_model(vision_models, "qwen2vl") as model:
        for encode in (png, bmp):
            data = encode(WIDE)
            np.testing.assert_array_equal(model.projector.decode(data), WIDE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"%PDF-1.7\n" + bytes(300),
        b"RIFF\x24\0\0\0WAVEfmt " + bytes(60),
        b"RIFF\x24\0\0\0WEBP" + bytes(60),
        b"\xff\xe0" + bytes(50),
        b"GIF89a",
        b"BM" + bytes(10),
        png(WIDE)[:200],
        png(WIDE)[:40],
    ],
)
def test_other_bytes_are_refused_and_start_no_program(
    vision_models: VisionModels,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """libmtmd takes what it cannot read for a video, and would start ffprobe."""
    for name in ("ffprobe", "ffmpeg"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        seeing_model(vision_models, "qwen2vl") as model,
        pytest.raises(LocalspecError),
    ):
        model.projector.decode(data)
    assert not (tmp_path / "started").exists()
    assert capfd.readouterr().err == ""


def test_a_picture_is_turned_as_the_camera_was_held() -> None:
    """Each number of EXIF says where the first row and the first column are."""
    letters = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)[:, :, np.newaxis]
    upright = {
        1: [[1, 2, 3], [4, 5, 6]],
        2: [[3, 2, 1], [6, 5, 4]],
        3: [[6, 5, 4], [3, 2, 1]],
        4: [[4, 5, 6], [1, 2, 3]],
        5: [[1, 4], [2, 5], [3, 6]],
        6: [[4, 1], [5, 2], [6, 3]],
        7: [[6, 3], [5, 2], [4, 1]],
        8: [[3, 6], [2, 5], [1, 4]],
    }
    for orientation, expected in upright.items():
        assert turn_upright(letters, orientation)[:, :, 0].tolist() == expected


# --- planted bugs


def _plant_in_batches(
    change: Callable[[np.ndarray], np.ndarray],
) -> Callable[..., None]:
    """Change the positions of a picture's rows."""

    def plant_it(monkeypatch: pytest.MonkeyPatch) -> None:
        original = LlamaBatch.set_picture

        def changed(
            self: LlamaBatch,
            states: HiddenStates,
            positions: np.ndarray,
            *,
            outputs: int,
        ) -> None:
            original(self, states, change(positions), outputs=outputs)

        monkeypatch.setattr(LlamaBatch, "set_picture", changed)

    return plant_it


def _move_z(positions: np.ndarray) -> np.ndarray:
    moved = positions.copy()
    moved[3] = moved[0]
    return moved


def _exchange_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Projector._encode_picture

    def changed(self: Projector, known: object) -> dict[int, HiddenStates]:
        states = original(self, known)  # type: ignore[arg-type]
        first, second, *_ = states
        return states | {first: states[second], second: states[first]}

    monkeypatch.setattr(Projector, "_encode_picture", changed)


def _set_causality(value: Callable[[bool], bool]) -> Callable[..., None]:
    def plant_it(monkeypatch: pytest.MonkeyPatch) -> None:
        original = C.llama_set_causal_attn

        def changed(handle: object, is_causal: bool) -> None:
            original(handle, value(is_causal))

        monkeypatch.setattr(C, "llama_set_causal_attn", changed)

    return plant_it


def _mutate(where: object, old: str, new: str) -> Callable[..., None]:
    return lambda monkeypatch: plant(monkeypatch, where, old, new)


BUGS: dict[str, tuple[Callable[..., None], Check, Sequence[str]]] = {
    "the fourth axis moves": (
        _plant_in_batches(_move_z),
        check_prompts,
        M_ROPE,
    ),
    "pictures begin one later": (
        _plant_in_batches(lambda positions: positions + 1),
        check_prompts,
        ("gemma3",),
    ),
    "rows and columns are exchanged": (
        _plant_in_batches(lambda positions: positions[[0, 2, 1, 3]]),
        check_prompts,
        M_ROPE,
    ),
    "cells are taken for positions": (
        _mutate(LlamaContext.position, "n_past + placed.shift", "n_past"),
        check_prompts,
        M_ROPE,
    ),
    "rows see only those before them": (
        _set_causality(lambda _: True),
        check_prompts,
        ("gemma3", "gemma4"),
    ),
    "the text sees what is behind it": (
        _set_causality(lambda _: False),
        check_prompts,
        ("gemma3", "qwen2vl"),
    ),
    "tiles are exchanged": (_exchange_tiles, check_prompts, ("smolvlm",)),
    "a cut is made inside a picture": (
        _mutate(LlamaContext._find_cut, "return placed.start", "return n_past"),
        check_cuts,
        ("qwen2vl",),
    ),
    "a cut is made at a cell": (
        _mutate(
            LlamaContext._cut_memory,
            "position = self.position(n_past)",
            "position = n_past",
        ),
        check_cuts,
        ("qwen2vl",),
    ),
    "a picture is rolled back by a snapshot": (
        _mutate(
            LlamaContext._cut_memory,
            "n_past <= self._last_decode_at",
            "n_past < self._last_decode_at - 99",
        ),
        check_cuts_of_what_was_just_read,
        ("qwen35",),
    ),
    "a checkpoint is restored at a cell": (
        _mutate(ContextCheckpoints.restore, "checkpoint.position", "checkpoint.n_past"),
        check_checkpoints,
        ("qwen35",),
    ),
    "a saved memory forgets its pictures": (
        _mutate(LlamaContext.restore_state, "list(placed)", "[]"),
        check_snapshots,
        ("qwen2vl",),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    vision_models: VisionModels, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_it, check, kinds = BUGS[bug]
    plant_it(monkeypatch)
    n_found = 0
    for kind in kinds:
        try:
            check(vision_models, kind)
        except (AssertionError, LocalspecError):
            n_found += 1
    assert n_found, "nothing fails"
