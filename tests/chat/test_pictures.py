"""Pictures in a chat session: what is sent, what stays with the question, what is refused."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.conversation import Conversation
from localspec.chat.history import ChatHistory
from localspec.chat.pictures import PictureCost, add_costs, load_each
from localspec.chat.session import ChatSession
from localspec.chat.titles import make_title
from localspec.errors import LocalspecError, PromptTooLongError, UsageError
from localspec.models.pictures import PICTURE_MARK
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import CountCommand, CountResult, GenerateCommand
from tests.support.chat_pictures import (
    PHOTO,
    SKETCH,
    attachment,
    ready_to_see,
    seen,
    thumbnail,
)
from tests.support.picture_bytes import png, shades
from tests.support.scenes import PAIR
from tests.support.scripted_engine import ScriptedEngine, answer, ready


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(tmp_path / "chats" / "chats.sqlite")) as opened:
        yield opened


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    return path


class Viewer:
    """A session whose engine sees, and says the same to everything."""

    def __init__(self, history: ChatHistory | None = None, **more: Any) -> None:
        self.session = ChatSession(PAIR, 1, history, **more)
        self.load(ready_to_see())

    def load(self, loaded: EngineReady) -> None:
        self.engine = ScriptedEngine(lambda: seen("A", " photo."), ready=loaded)
        self.session.attach_engine(self.engine)

    def attach(self, *paths: Path) -> None:
        for picture in self.session.pictures.load(paths):
            self.session.add_picture(picture)

    def ask(self, question: str) -> GenerateCommand:
        self.session.ask(question)
        return self.answer()

    def answer(self) -> GenerateCommand:
        list(self.session.stream_answer(self.engine))
        return self.engine.asked[-1]


def sent_bytes(request: GenerateCommand, message: int = -1) -> list[bytes]:
    """The bytes of a message's pictures, as the engine reads them."""
    images = request.messages[message].images
    return [Path(image.path).read_bytes() for image in images]


def test_a_picture_goes_with_the_next_question(
    photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(history)
    viewer.attach(photo)

    request = viewer.ask("What is it?")

    assert request.messages[-1].content == "What is it?"
    assert sent_bytes(request) == [PHOTO]
    assert request.messages[-1].images[0].sha256 == attachment().sha256
    assert viewer.session.pending_pictures == ()
    (turn,) = viewer.session.conversation.turns
    (picture,) = turn.pictures
    assert (picture.name, picture.n_rows) == ("photo.png", 24)
    assert picture.thumbnail == thumbnail()


def test_the_files_that_cannot_be_read_are_all_named(
    photo: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(PHOTO[:50])
    session = Viewer().session
    files = [broken, photo, tmp_path / "no.png"]

    loaded = load_each([partial(session.pictures.load, [file]) for file in files])

    assert [picture.name for picture in loaded.pictures] == ["photo.png"]
    assert loaded.problem is not None
    assert "broken.png is incomplete" in loaded.problem.message
    assert "no.png" in loaded.problem.message


def test_of_many_files_that_cannot_be_read_the_first_are_named(tmp_path: Path) -> None:
    session = Viewer().session
    files = [tmp_path / f"no-{number}.png" for number in range(9)]

    loaded = load_each([partial(session.pictures.load, [file]) for file in files])

    assert loaded.pictures == ()
    assert loaded.problem is not None
    assert "no-4.png" in loaded.problem.message
    assert "4 more files cannot be attached." in loaded.problem.message


def test_a_later_question_sends_the_picture_again(
    photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(history)
    viewer.attach(photo)
    viewer.ask("What is it?")

    request = viewer.ask("And its colour?")

    assert sent_bytes(request, 0) == [PHOTO]
    assert sent_bytes(request, -1) == []


@pytest.mark.parametrize("is_private", [False, True])
def test_branches_keep_the_picture(
    is_private: bool, photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(None if is_private else history)
    session = viewer.session
    viewer.attach(photo)
    viewer.ask("What is it?")
    photo.unlink()

    session.regenerate()
    assert sent_bytes(viewer.answer()) == [PHOTO]

    session.edit_last("Who is it?")
    assert sent_bytes(viewer.answer()) == [PHOTO]

    undone = session.undo()
    assert [each.name for each in undone.pictures] == ["photo.png"]
    session.switch_branch(1)
    assert session.return_to(1) == "What is it?"
    assert [each.name for each in session.pending_pictures] == ["photo.png"]
    assert sent_bytes(viewer.ask("Once more?")) == [PHOTO]


def test_a_chat_that_is_opened_again_sends_its_pictures(
    photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(history)
    viewer.attach(photo)
    viewer.ask("What is it?")
    viewer.session.close()
    photo.unlink()

    saved = history.load_chat(history.find_last_id())
    again = Viewer(history, saved_chat=saved)

    assert sent_bytes(again.ask("And its colour?"), 0) == [PHOTO]


def test_a_model_that_does_not_see_is_told_of_the_picture(
    photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(history)
    viewer.attach(photo)
    viewer.ask("What is it?")
    viewer.load(ready())

    request = viewer.ask("And its colour?")

    assert request.messages[0].images == ()
    assert (
        request.messages[0].content
        == "[image: photo.png, not seen by this model]\nWhat is it?"
    )
    (notice,) = viewer.session.take_notices()
    assert notice.message == "photo.png is left out: qwen3-8b does not see pictures."
    viewer.ask("Again?")
    assert viewer.session.take_notices() == [], "it is said once"


def test_a_picture_is_refused_for_a_model_that_does_not_see(photo: Path) -> None:
    viewer = Viewer()
    viewer.attach(photo)
    viewer.load(ready())

    with pytest.raises(LocalspecError, match="qwen3-8b does not see pictures"):
        viewer.session.ask("What is it?")

    assert viewer.session.conversation.turns == ()
    assert len(viewer.session.pending_pictures) == 1


def test_a_picture_that_was_lost_is_a_line(photo: Path, history: ChatHistory) -> None:
    viewer = Viewer(history)
    viewer.attach(photo)
    viewer.ask("What is it?")
    viewer.session.close()
    saved = history.load_chat(history.find_last_id())
    again = Viewer(None, saved_chat=saved)
    history.remove_chats([saved.location.chat_id])

    request = again.ask("And its colour?")

    assert request.messages[0].content.startswith("[image: photo.png, not seen")
    (notice,) = again.session.take_notices()
    assert notice.message == "photo.png is left out: it is no longer saved."


def test_a_question_that_is_withdrawn_gives_its_picture_back(
    photo: Path, history: ChatHistory
) -> None:
    viewer = Viewer(history)
    too_long = PromptTooLongError("The prompt is too long.")
    viewer.engine = ScriptedEngine(lambda: [too_long], ready=ready_to_see())
    viewer.attach(photo)

    with pytest.raises(PromptTooLongError):
        viewer.ask("What is it?")

    assert [each.name for each in viewer.session.pending_pictures] == ["photo.png"]
    assert history.read_picture(attachment().sha256) is None


def test_a_message_has_twenty_pictures_at_most(tmp_path: Path) -> None:
    viewer = Viewer()
    paths = []
    for n in range(21):
        path = tmp_path / f"{n}.png"
        path.write_bytes(png(shades(4, 4 + n)))
        paths.append(path)
    viewer.attach(*paths[:20])
    viewer.attach(paths[3])  # It is there already.
    assert len(viewer.session.pending_pictures) == 20

    with pytest.raises(UsageError, match="at most 20 pictures"):
        viewer.attach(paths[20])


def test_a_typed_text_cannot_stand_for_a_picture(photo: Path) -> None:
    viewer = Viewer()
    viewer.attach(photo)

    request = viewer.ask(f"before {PICTURE_MARK} after")

    assert request.messages[-1].content == "before \ufffd after"


def test_a_picture_costs_what_the_engine_counts(photo: Path) -> None:
    class Counter(ScriptedEngine):
        def count(self, count: CountCommand) -> CountResult:
            n_images = sum(len(each.images) for each in count.messages)
            return CountResult(9 + 30 * n_images, 2.5 * n_images)

    viewer = Viewer()
    session = viewer.session
    viewer.attach(photo)
    before = session.estimate_tokens("four")

    costs = session.count_pictures(Counter(), session.pending_pictures)
    session.picture_costs |= costs

    assert costs == {attachment().sha256: PictureCost(30, 2.5)}
    assert session.estimate_tokens("four") == before + 30


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (PictureCost(1020, 16.2), "1,020 tokens, about 16 s to read"),
        (PictureCost(64, 75.0), "64 tokens, about 1 min 15 s to read"),
        (PictureCost(1, 0.4), "1 token"),
        (PictureCost(64), "64 tokens"),
    ],
)
def test_a_cost_has_the_tokens_and_the_seconds_that_are_worth_a_word(
    cost: PictureCost, text: str
) -> None:
    assert cost.text == text


def test_the_seconds_of_several_pictures_are_unknown_if_those_of_one_are() -> None:
    one = PictureCost(30, 2.5)

    assert add_costs([one, one]) == PictureCost(60, 5.0)
    assert add_costs([one, PictureCost(30)]) == PictureCost(60)


def test_a_new_chat_has_no_pictures_of_the_last(photo: Path) -> None:
    viewer = Viewer()
    viewer.attach(photo)

    viewer.session.start_new_chat()

    assert viewer.session.pending_pictures == ()


def test_a_title_names_the_pictures_of_a_question_that_says_nothing() -> None:
    conversation = Conversation(1)
    conversation.ask("What is this?", (), [attachment(), attachment(SKETCH, "b.png")])
    named = Conversation(1)
    named.ask("Which tree is on the left?", (), [attachment()])

    assert make_title(conversation) == "photo.png, b.png"
    assert make_title(named) == "Which tree is on the left?"


def test_an_answer_without_pictures_is_asked_as_before() -> None:
    viewer = Viewer()
    viewer.engine = ScriptedEngine(lambda: answer(["yes"]), ready=ready_to_see())

    request = viewer.ask("one\n")

    assert request.messages[-1].content == "one\n"
    assert request.messages[-1].images == ()
