"""Pictures in chats of a whole session: counted, read once, told, and refused by name."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.engine.prompt_pictures import PictureTimer
from localspec.engine.session import Session
from localspec.errors import ModelFileError, PictureError, PromptTooLongError
from localspec.llama.images import Projector
from localspec.models import projector_shape
from localspec.models.gguf import reader
from localspec.protocol.events import Event, GenerationFinished, PictureReading
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    InspectCommand,
    LoadCommand,
    MeasuredCosts,
    PictureRef,
    ProjectorSettings,
    ReplayCommand,
)
from tests.support.picture_bytes import bmp, empty_png, gif, jpeg, png, shades
from tests.support.sessions import GREEDY, SETTINGS, Said, folded
from tests.support.vision_models import KINDS, VisionFiles, VisionModels

ROOMY = replace(SETTINGS, n_ctx=1024, n_ubatch=128)


@contextmanager
def seeing(
    files: VisionFiles, draft: Path | None = None, **load: Any
) -> Iterator[Session]:
    command = LoadCommand(
        str(files.model),
        str(draft) if draft else None,
        target_settings=ROOMY,
        draft_settings=ROOMY,
        projector=ProjectorSettings(str(files.projector)),
    )
    with closing(Session(replace(command, **load))) as session:
        yield session


@pytest.fixture
def gemma(vision_models: VisionModels) -> Iterator[Session]:
    with seeing(vision_models["gemma3"]) as session:
        yield session


class Album:
    """Files of pictures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, data: bytes, name: str = "") -> PictureRef:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._folder / sha256
        path.write_bytes(data)
        return PictureRef(str(path), sha256, name)


@pytest.fixture
def album(tmp_path: Path) -> Album:
    return Album(tmp_path)


SMALL = png(shades(40, 30))
WIDE = png(shades(90, 20))
N_ROWS = 16  # That gemma3 makes of any picture here.


def ask(text: str, *images: PictureRef) -> ChatMessage:
    return ChatMessage("user", text, images=images)


def answer(
    session: Session, *messages: ChatMessage, **more: Any
) -> tuple[Said, list[Event]]:
    request = GenerateCommand(messages=messages, sampling=GREEDY, max_tokens=12)
    events = list(session.generate(replace(request, **more)))
    return folded(events), events


def readings(events: Sequence[Event]) -> list[PictureReading]:
    return [event for event in events if isinstance(event, PictureReading)]


# --- counting and reading


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_counted_by_headers_as_it_is_then_read(
    vision_models: VisionModels, album: Album, kind: str
) -> None:
    messages = (
        ask("one", album.add(SMALL)),
        ChatMessage("assistant", "ok"),
        ask("two", album.add(WIDE), album.add(SMALL)),
    )
    with seeing(vision_models[kind]) as session:
        counted = session.count(CountCommand(messages=messages)).tokens

        said, events = answer(session, *messages)

    assert said.totals["prompt_tokens"] == counted
    text = [ask("one"), ChatMessage("assistant", "ok"), ask("two")]
    assert counted > sum(len(message.content) for message in text)
    assert [event.of for event in readings(events)] == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_behind_a_picture_leave_the_text_as_it_is(
    vision_models: VisionModels, album: Album, kind: str
) -> None:
    messages = (ask("the one the one", album.add(SMALL)),)
    draft = None
    if kind in ("smolvlm", "gemma3", "qwen2vl"):
        draft = vision_models.draft(kind)
    with seeing(vision_models[kind], draft) as session:
        plain, _ = answer(session, *messages, spec="off", max_tokens=40)
        specs = ["lookup", "auto"] + ["model"] * (draft is not None)

        for spec in specs:
            said, _ = answer(session, *messages, spec=spec, max_tokens=40)
            assert said.ids == plain.ids, spec


def test_another_picture_gives_another_answer(gemma: Session, album: Album) -> None:
    first, _ = answer(gemma, ask("hi", album.add(SMALL)), max_tokens=40)
    second, _ = answer(gemma, ask("hi", album.add(WIDE)), max_tokens=40)
    again, _ = answer(gemma, ask("hi", album.add(SMALL)), max_tokens=40)

    assert first.ids == again.ids
    assert first.ids != second.ids


def test_a_picture_is_read_once_and_each_new_one_is_told_before(
    gemma: Session, album: Album
) -> None:
    small = album.add(SMALL)
    wide = album.add(WIDE)

    _, first = answer(gemma, ask("one", small, small))
    _, second = answer(gemma, ask("one", small, small), ask("two", wide))
    _, third = answer(gemma, ask("other", small))

    (reading,) = readings(first)
    assert (reading.n, reading.of) == (1, 1)
    assert (reading.width, reading.height) == (40, 30)
    assert reading.sha256 == small.sha256
    assert reading.rows > 0
    assert reading.seconds_expected is not None
    assert reading.thumbnail is not None
    assert (reading.thumbnail.width, reading.thumbnail.height) == (40, 30)
    kinds = [type(event).__name__ for event in first]
    assert kinds.index("PictureReading") < kinds.index("Prefill")
    assert [each.sha256 for each in readings(second)] == [wide.sha256]
    assert readings(third) == []


def test_how_long_a_picture_takes_is_known_before_it_is_sent(
    gemma: Session, album: Album
) -> None:
    reader = gemma._pair.pictures
    assert reader is not None
    reader._timer = PictureTimer("", 0.5)
    question = ask("one", album.add(SMALL))
    count = CountCommand(messages=(question,))

    before = gemma.count(count).picture_seconds
    _, events = answer(gemma, question)
    afterwards = gemma.count(count).picture_seconds

    (reading,) = readings(events)
    assert before == reading.seconds_expected == 0.5 * N_ROWS
    assert afterwards == 0.0
    assert gemma.count(CountCommand(text="hi")).picture_seconds is None


def test_the_speed_of_pictures_is_measured_and_used_by_the_next_run(
    vision_models: VisionModels, album: Album
) -> None:
    files = vision_models["gemma3"]
    count = CountCommand(messages=(ask("one", album.add(SMALL)),))
    earlier = MeasuredCosts(1.0, {"1": 1.0})
    with seeing(files, measured=earlier) as session:
        answer(session, *count.messages)
        (costs,) = session.measured_costs()
    assert costs.pictures is not None

    slow = replace(costs.pictures, row_ms=500.0)
    with seeing(files, measured=replace(costs, pictures=slow)) as session:
        assert session.count(count).picture_seconds == 0.5 * N_ROWS
        (costs,) = session.measured_costs()
        assert costs.pictures == slow

    text_only = LoadCommand(str(files.model), target_settings=ROOMY)
    text_only = replace(text_only, measured=replace(costs, pictures=slow))
    with closing(Session(text_only)) as session:
        (costs,) = session.measured_costs()
        assert costs.pictures == slow


def test_a_picture_in_memory_needs_its_file_no_more(
    gemma: Session, album: Album
) -> None:
    small = album.add(SMALL)
    first, _ = answer(gemma, ask("one", small))
    Path(small.path).unlink()

    second, _ = answer(gemma, ask("one", small))

    assert second.ids == first.ids


def test_pictures_that_were_sent_long_ago_are_forgotten_and_read_again(
    gemma: Session, album: Album, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.llama.images._COST_PER_CELL", 1)
    small = album.add(SMALL)
    first, _ = answer(gemma, ask("one", small))
    for n in range(100):
        other = album.add(png(shades(20 + n, 20)))
        gemma.count(CountCommand(messages=(ask("", other),)))
    reader = gemma._pair.pictures
    assert reader is not None
    assert len(reader._pictures) < 50

    second, events = answer(gemma, ask("one", small))
    assert readings(events) == []
    answer(gemma, ask("other"))
    for n in range(100):
        other = album.add(png(shades(20 + n, 20)))
        gemma.count(CountCommand(messages=(ask("", other),)))
    third, _ = answer(gemma, ask("one", small))

    assert second.ids == first.ids
    assert third.ids == first.ids


def test_an_upright_photograph_is_the_same_as_one_that_was_turned(
    gemma: Session, album: Album
) -> None:
    """Orientation 6: the first row of the file is the right column of the scene."""
    blocks = [[0, 0, 0, 255], [255, 0, 0, 255]]
    turned = [[row[x] for row in reversed(blocks)] for x in range(4)]
    by_camera, events = answer(
        gemma, ask("hi", album.add(jpeg(blocks, orientation=6))), max_tokens=40
    )
    by_hand, _ = answer(gemma, ask("hi", album.add(jpeg(turned))), max_tokens=40)
    _, events_as_stored = answer(gemma, ask("hi", album.add(jpeg(blocks))))

    (reading,) = readings(events)
    (as_stored,) = readings(events_as_stored)
    assert (reading.width, reading.height) == (16, 32)
    assert (as_stored.width, as_stored.height) == (32, 16)
    assert by_camera.ids == by_hand.ids


@pytest.mark.parametrize(
    "data",
    [jpeg(shades(3, 2)), png(shades(24, 16)), gif(24, 16), bmp(shades(24, 16))],
    ids=["jpeg", "png", "gif", "bmp"],
)
def test_each_kind_of_file_is_decoded(
    gemma: Session, album: Album, data: bytes
) -> None:
    said, events = answer(gemma, ask("hi", album.add(data)))

    assert said.reason in ("length", "eog")
    assert (readings(events)[0].width, readings(events)[0].height) == (24, 16)


def test_an_answer_with_a_picture_can_be_scored_and_replayed(
    gemma: Session, album: Album
) -> None:
    messages = (ask("hi", album.add(SMALL)),)
    said, _ = answer(gemma, *messages, spec="off")
    ids = tuple(said.ids)

    scores = list(gemma.inspect(InspectCommand(messages=messages, tokens=ids)))
    replayed = gemma.replay(
        ReplayCommand(
            "",
            tokens=ids,
            widths=(1,) * (len(ids) - 1),
            emitted=(1,) * (len(ids) - 1),
            sampling=GREEDY,
            messages=messages,
        )
    )

    assert sum(len(each.places) for each in scores) == len(ids)
    assert all(place.rank == 1 for each in scores for place in each.places)
    assert replayed.best == ids


def test_ready_says_that_the_model_sees(
    gemma: Session, vision_models: VisionModels
) -> None:
    assert gemma.ready.settings["images"] == {
        "kind": "gemma3",
        "max_rows": 16,
        "audio": False,
    }
    alone = gemma.ready.memory["weights"]
    files = vision_models["gemma3"]
    with seeing(files, projector=None) as blind:
        assert blind.ready.settings["images"] is None
        weights = blind.ready.memory["weights"]
    assert alone is not None and weights is not None
    assert 0 < alone - weights <= files.projector.stat().st_size


# --- stopping, and what does not fit


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_counted_by_the_rule_of_fit(
    vision_models: VisionModels, kind: str
) -> None:
    """The projector's weights, and the buffer of its largest picture."""
    files = vision_models[kind]
    shape = projector_shape.from_header(reader.read(files.projector))
    rows = shape.rows(on_gpu=False, n_batch=ROOMY.n_ubatch)
    buffer = shape.compute_bytes(rows, on_gpu=False)
    buffer += shape.work_bytes(rows, on_gpu=False)
    assert buffer > 0
    with seeing(files) as session, seeing(files, projector=None) as blind:
        seeing_memory = session.ready.memory
        blind_memory = blind.ready.memory
        target = session._pair.target
        batch = 4 * target.n_batch * target.model.n_embd_inp
    for name in ("used", "CPU"):
        more = (seeing_memory[name] or 0) - (blind_memory[name] or 0)
        assert more == shape.weights + buffer + batch
    weights = (seeing_memory["weights"] or 0) - (blind_memory["weights"] or 0)
    assert weights == shape.weights


def test_a_stop_while_a_picture_is_read_ends_the_answer(
    gemma: Session, album: Album
) -> None:
    messages = (ask("hi", album.add(SMALL)),)
    request = GenerateCommand(messages=messages, sampling=GREEDY, max_tokens=12)
    events: list[Event] = []
    for event in gemma.generate(request):
        events.append(event)
        if isinstance(event, PictureReading):
            gemma.stop()

    end = events[-1]
    assert isinstance(end, GenerationFinished)
    assert end.reason == "cancelled"
    assert end.totals["tokens"] == 0
    said, again = answer(gemma, *messages)
    assert len(readings(again)) == 1
    assert said.reason in ("length", "eog")


def test_a_prompt_that_is_too_long_is_refused_before_a_picture_is_read(
    vision_models: VisionModels, album: Album, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a picture was read")

    settings = replace(ROOMY, n_ctx=256)
    with seeing(vision_models["gemma3"], target_settings=settings) as session:
        monkeypatch.setattr(Projector, "decode", fail)
        images = [album.add(png(shades(20 + n, 20))) for n in range(20)]

        with pytest.raises(PromptTooLongError, match="tokens"):
            answer(session, ask("hi", *images))


# --- what cannot be used


def test_a_model_without_a_projector_says_so(
    vision_models: VisionModels, album: Album
) -> None:
    with seeing(vision_models["gemma3"], projector=None) as session:
        messages = (ask("hi", album.add(SMALL)),)

        with pytest.raises(PictureError, match="sees no pictures"):
            answer(session, *messages)
        with pytest.raises(PictureError, match="sees no pictures"):
            session.count(CountCommand(messages=messages))


def test_a_file_that_is_gone_or_another_one_now_is_named(
    gemma: Session, album: Album
) -> None:
    gone = album.add(SMALL, "holiday.png")
    Path(gone.path).unlink()
    changed = album.add(WIDE, "wide.png")
    Path(changed.path).write_bytes(SMALL)

    with pytest.raises(PictureError, match=r"holiday\.png is gone"):
        answer(gemma, ask("hi", gone))
    with pytest.raises(PictureError, match=r"wide\.png has changed"):
        answer(gemma, ask("hi", changed))
    assert answer(gemma, ask("hi", album.add(SMALL)))[0].reason


def test_a_picture_that_is_damaged_behind_its_header_is_named(
    gemma: Session, album: Album
) -> None:
    data = bytearray(png(shades(40, 30)))
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)

    with pytest.raises(PictureError, match=r"damaged\.png"):
        answer(gemma, ask("hi", album.add(bytes(data), "damaged.png")))
    assert answer(gemma, ask("hi", album.add(SMALL)))[0].reason


@pytest.mark.parametrize("size", [(1, 1), (9000, 1), (1, 9000), (2000, 1500)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_any_size_is_read_or_refused_by_name(
    vision_models: VisionModels, album: Album, kind: str, size: tuple[int, int]
) -> None:
    with seeing(vision_models[kind]) as session:
        ref = album.add(empty_png(*size), "odd.png")
        try:
            said, _ = answer(session, ask("hi", ref), max_tokens=2)
        except PictureError as error:
            assert "odd.png" in error.message
        except PromptTooLongError:
            pass
        else:
            assert said.reason in ("length", "eog")
        said, _ = answer(session, ask("hi", album.add(SMALL)), max_tokens=2)
        assert said.reason in ("length", "eog")


# --- projectors that cannot be used

BROKEN: dict[str, tuple[bytes, bytes]] = {
    "an unknown kind": (b"\6\0\0\0\0\0\0\0gemma3", b"\6\0\0\0\0\0\0\0gemmaX"),
    "a missing tensor": (b"mm.soft_emb_norm", b"mm.soft_emb_nurm"),
    "a patch size of 0": (b"patch_size\4\0\0\0\10", b"patch_size\4\0\0\0\0"),
    "a patch size of 7": (b"patch_size\4\0\0\0\10", b"patch_size\4\0\0\0\7"),
    "three heads": (b"head_count\4\0\0\0\2", b"head_count\4\0\0\0\3"),
    "no heads": (b"head_count\4\0\0\0\2", b"head_count\4\0\0\0\0"),
}
"""What is replaced in the file of Gemma 3's projector."""


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_projector_is_refused_by_name(
    vision_models: VisionModels, tmp_path: Path, problem: str
) -> None:
    files = vision_models["gemma3"]
    old, new = BROKEN[problem]
    data = files.projector.read_bytes()
    assert old in data
    broken = tmp_path / "mmproj-broken.gguf"
    broken.write_bytes(data.replace(old, new))

    with pytest.raises(ModelFileError, match=r"mmproj-broken\.gguf"):
        load(files.model, broken)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.99])
def test_a_projector_that_is_cut_is_refused_by_name(
    vision_models: VisionModels, tmp_path: Path, share: float
) -> None:
    files = vision_models["gemma3"]
    data = files.projector.read_bytes()
    cut = tmp_path / "mmproj-cut.gguf"
    cut.write_bytes(data[: int(len(data) * share)])

    with pytest.raises(ModelFileError, match=r"mmproj-cut\.gguf"):
        load(files.model, cut)


@pytest.mark.parametrize("other", ["gemma4", "qwen2vl", "smolvlm"])
def test_a_projector_of_another_model_is_refused_by_name(
    vision_models: VisionModels, other: str
) -> None:
    """The first has another width; the others would answer nonsense."""
    model = vision_models["gemma3"].model
    projector = vision_models[other].projector

    with pytest.raises(ModelFileError, match=projector.name):
        load(model, projector)


def test_a_model_is_no_projector(vision_models: VisionModels) -> None:
    model = vision_models["gemma3"].model

    with pytest.raises(ModelFileError, match="not a projector"):
        load(model, model)


def load(model: Path, projector: Path) -> None:
    command = LoadCommand(
        str(model),
        target_settings=ROOMY,
        projector=ProjectorSettings(str(projector)),
    )
    with closing(Session(command)):
        pass
