"""One chat: a tree of turns with one selected path, and the prompt of that path."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models.chat_template.thinking_tags import (
    AnswerPart,
    merge_parts,
    split_thinking,
    strip_thinking,
)
from localspec.protocol.events import (
    Event,
    FinishReason,
    GenerationFinished,
    PictureReading,
    Prefill,
    Round,
    Thumbnail,
)
from localspec.protocol.wire import ChatMessage, PictureRef, ToolCall
from localspec.tools.approval import Verdict

SUMMARY_HEADING = "Summary of the earlier conversation:"
"""First line of the system note that replaces dropped turns."""


class Attachment(Struct, frozen=True):
    name: str
    text: str


class PictureAttachment(Struct, frozen=True):
    """A picture or audio of a question. Its bytes are kept once, by their hash."""

    name: str
    sha256: str
    kind: str  # A `PictureKind` of `models.pictures`, or an `AudioKind`.
    width: int = 0  # In pixels, as it is seen: after the turn that EXIF asks for.
    height: int = 0
    n_rows: int | None = None
    """Tokens of the context that it takes; None until a model has counted them."""
    thumbnail: Thumbnail | None = None  # None until a model has read it.
    seconds: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """How long audio is; None: it is a picture."""

    @property
    def is_audio(self) -> bool:
        return self.seconds is not None

    @property
    def word(self) -> str:
        """What it is in a text, as in `[image: photo.jpg]`."""
        return "audio" if self.is_audio else "image"

    def refer(self, path: str) -> PictureRef:
        """What a message says of it. `path`: its file."""
        if self.is_audio:
            return PictureRef(path, self.sha256, self.name, kind="audio")
        return PictureRef(path, self.sha256, self.name)

    def with_reading(self, reading: PictureReading) -> PictureAttachment:
        """With what the engine reports when it reads this picture."""
        if reading.sha256 != self.sha256:
            return self
        thumbnail = reading.thumbnail or self.thumbnail
        return replace(self, n_rows=reading.rows, thumbnail=thumbnail)


class CallResult(Struct, frozen=True):
    """What became of a call of a tool, as the model receives it."""

    call_id: str
    tool: str
    """The tool's full name, such as `time.convert_time`; the name that the model wrote
    if there is no such tool.
    """
    text: str
    """Untrusted text, also of an error."""
    is_error: bool
    verdict: Verdict
    pictures: tuple[PictureAttachment, ...] = ()

    def with_reading(self, reading: PictureReading) -> CallResult:
        """With what the engine reports when it reads one of its pictures."""
        pictures = tuple(picture.with_reading(reading) for picture in self.pictures)
        return replace(self, pictures=pictures)


class Turn(Struct, frozen=True):
    """A question, or results of calls, and the answer so far.

    `question` is empty if a text was only continued, and in a turn with `results`. A
    question that is answered with one call takes two turns:

        1. question "What time is it?", answer '<tool_call>{"name": …', calls (a call)
        2. results (12:04), answer "It is four past twelve."
    """

    question: str
    answer: str = ""  # The model's text, thinking included, unfiltered.
    finish_reason: FinishReason | None = None
    """None while the answer is being written, or if it was interrupted."""
    attempt: int = 0
    """The number among its siblings; part of the seed, so that their answers differ."""
    events: tuple[Event, ...] = ()
    """Those of the answer, for the token view and the replay."""
    attachments: tuple[Attachment, ...] = ()
    pictures: tuple[PictureAttachment, ...] = ()
    id: int = 0  # Unique in the chat, and larger than the ids of all earlier turns.
    parent: int | None = None
    """The id of the previous turn; None for the first turn of the chat."""
    model: str = ""  # The name of the answering model; empty if unknown.
    calls: tuple[ToolCall, ...] = ()
    """The complete calls of the answer."""
    call_format: str = ""
    """The tool format that `calls` were read by, which tells them from the text."""
    results: tuple[CallResult, ...] = ()
    """What became of the calls of the turn before."""

    @property
    def is_tool_step(self) -> bool:
        """Whether it answers results of calls, and so belongs to an earlier question."""
        return bool(self.results)

    @property
    def is_unfinished(self) -> bool:
        """Whether its answer was interrupted, if it is the last turn of its path.

        Also if it ends with calls: they have no results.
        """
        return self.finish_reason is None or bool(self.calls)

    @property
    def all_pictures(self) -> tuple[PictureAttachment, ...]:
        """The pictures of the question, and those of the results."""
        pictures = list(self.pictures)
        for result in self.results:
            pictures += result.pictures
        return tuple(pictures)

    @property
    def file_names(self) -> list[str]:
        """The names of its files and pictures."""
        names = [file.name for file in self.attachments]
        return names + [picture.name for picture in self.pictures]

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(event for event in self.events if isinstance(event, Round))

    @property
    def tokens(self) -> tuple[int, ...]:
        ids: list[int] = []
        for event in self.rounds:
            ids += [token.id for token in event.tokens]
        return tuple(ids)

    @property
    def starts_in_thinking(self) -> bool:
        """Whether the chat template opened the thinking part before the answer."""
        return any(
            isinstance(event, Prefill) and event.thinking for event in self.events
        )

    @property
    def ends_in_thinking(self) -> bool:
        for event in self.events:
            if isinstance(event, GenerationFinished):
                thinking = event.totals.get("thinking", {})
                if thinking.get("open"):
                    return True
        return False

    def without_answer(self) -> Turn:
        """The question alone, with its files, pictures, results and place in the chat."""
        return replace(
            self,
            answer="",
            finish_reason=None,
            events=(),
            model="",
            calls=(),
            call_format="",
        )

    def visible_answer(self, thinking_tags: tuple[str, str] | None) -> str:
        """The answer without thinking and without calls."""
        if not self.calls:
            return strip_thinking(self.answer, thinking_tags, self.starts_in_thinking)
        parts = self.split_answer(thinking_tags)
        return "".join(part.text for part in parts if not part.is_thinking).strip()

    def split_answer(
        self, thinking_tags: tuple[str, str] | None
    ) -> Sequence[AnswerPart]:
        """The thinking and the rest of the answer, without its calls."""
        parts = split_thinking(self.answer, thinking_tags, self.starts_in_thinking)
        if self.calls:
            return _leave_out_calls(parts, self.call_format)
        return parts

    def with_events(self, events: Sequence[Event]) -> Turn:
        text = [self.answer]
        reason = self.finish_reason
        pictures = self.pictures
        results = self.results
        for event in events:
            if isinstance(event, Round):
                text += [token.text for token in event.tokens]
            elif isinstance(event, GenerationFinished):
                text.append(event.tail)
                reason = event.reason
            elif isinstance(event, PictureReading):
                pictures = tuple(picture.with_reading(event) for picture in pictures)
                results = tuple(result.with_reading(event) for result in results)
        return replace(
            self,
            pictures=pictures,
            results=results,
            answer="".join(text),
            finish_reason=reason,
            events=(*self.events, *events),
        )


@lru_cache(maxsize=512)
def _leave_out_calls(
    parts: tuple[AnswerPart, ...], call_format: str
) -> tuple[AnswerPart, ...]:
    """The parts of an answer without its calls.

    It is cached: to make room in a full context, all answers are counted several times.
    """
    # The parsers of calls take a moment to import, and few chats have calls.
    from localspec.chat.answer_calls import AnswerCallReader  # noqa: PLC0415

    reader = AnswerCallReader(call_format)
    texts: list[AnswerPart] = []
    for part in parts:
        texts += reader.feed(part)
    texts += reader.finish(is_cut=False)
    return merge_parts(texts)


class DroppedTurns(Struct, frozen=True):
    """The oldest turns of a path, which are no longer sent to the model."""

    turns: int = 0
    summary: str = ""  # A summary by the model that replaces them; may be empty.
    seal: int = 0
    """Checksum of the turns: on a path with other first turns, nothing is dropped."""

    @classmethod
    def from_turns(cls, turns: Sequence[Turn], summary: str = "") -> DroppedTurns:
        return cls(len(turns), summary, _checksum(turns))

    def is_prefix_of(self, turns: Sequence[Turn]) -> bool:
        """Whether the path `turns` begins with the dropped turns."""
        return self.turns <= len(turns) and self.seal == _checksum(turns[: self.turns])


def _checksum(turns: Sequence[Turn]) -> int:
    seal = 0
    for turn in turns:
        seal = zlib.crc32(repr((turn.question, turn.answer)).encode(), seal)
        for result in turn.results:
            seal = zlib.crc32(repr(result.text).encode(), seal)
    return seal


class _CheckedDropped(Struct, frozen=True):
    """Whether a path that begins with `beginning` begins with the dropped turns."""

    dropped: DroppedTurns
    beginning: tuple[Turn, ...]
    is_prefix: bool


ConversationSnapshot = tuple[Mapping[int, Turn], tuple[Turn, ...]]
"""All turns by id, and the selected path."""


class Conversation:
    """A tree of turns, of which one path is selected.

    Editing, regenerating and undoing keep the old turns as branches. After questions a
    and b, b is edited to c: turns 2 (b) and 3 (c) both have turn 1 (a) as parent, and
    the path is 1, 3. Every turn on the path has an answer, except perhaps the last.
    """

    def __init__(
        self,
        seed: int,
        system: str = "",
        turns: Iterable[Turn] = (),
        head: int | None = None,
    ) -> None:
        """`turns` and `head` restore a saved chat. A turn's parent has a smaller id."""
        self.seed = seed
        self._system = system
        self.system_since = 0
        """The last turn that was asked before the system prompt was set; 0: none."""
        self._set_turns(turns)
        self._path = self._path_to(head)
        self.picture_paths: dict[str, str] = {}
        """The files of pictures that the model can read, by hash.

        In a message, any other picture is a line of text with its name.
        """
        self.thinking_markers: tuple[str, str] | None = None
        """The model's marks of thinking: they tell it from what is said with a call."""
        self.dropped = DroppedTurns()
        """What an overflow of the context left out; see `active_dropped`."""
        self._checked_dropped = _CheckedDropped(self.dropped, (), is_prefix=True)

    def copy(self) -> Conversation:
        """The conversation as it is now, for a thread that reads it."""
        other = Conversation(self.seed, self._system, self._turns.values(), self.head)
        other.system_since = self.system_since
        other.picture_paths = dict(self.picture_paths)
        other.thinking_markers = self.thinking_markers
        other.dropped = self.dropped
        return other

    def _set_turns(self, turns: Iterable[Turn]) -> None:
        by_id = sorted(turns, key=lambda turn: turn.id)
        self._turns = {turn.id: turn for turn in by_id}
        """The turns by their id, in ascending order."""
        self._children: dict[int | None, list[int]] = {}
        """The ids of the turns after each turn; those of first turns after None."""
        for turn in by_id:
            self._children.setdefault(turn.parent, []).append(turn.id)

    @property
    def system(self) -> str:
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        if text != self._system:
            self._system = text
            self.system_since = self._last_id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The selected path, from the first turn to the head."""
        return self._path

    @property
    def questions(self) -> tuple[Turn, ...]:
        """The turns of the selected path that a person asked, without tool steps."""
        return tuple(turn for turn in self._path if not turn.is_tool_step)

    def question_of(self, turn_id: int) -> Turn:
        """The question that a turn belongs to: itself, unless it is a tool step.

        Raises KeyError.
        """
        turn = self._turns[turn_id]
        while turn.is_tool_step and turn.parent is not None:
            turn = self._turns[turn.parent]
        return turn

    def list_steps(self, turn_id: int) -> tuple[Turn, ...]:
        """A question of the selected path with its tool steps. Raises KeyError."""
        question = self.question_of(turn_id)
        start = self._path.index(question)
        end = start + 1
        while end < len(self._path) and self._path[end].is_tool_step:
            end += 1
        return self._path[start:end]

    @property
    def n_before_question(self) -> int:
        """How many turns of the path are before the last question and its tool steps."""
        n_turns = len(self._path)
        while n_turns > 1 and self._path[n_turns - 1].is_tool_step:
            n_turns -= 1
        return max(0, n_turns - 1)

    @property
    def head(self) -> int | None:
        """The id of the last turn of the path; None if the path is empty."""
        return self._path[-1].id if self._path else None

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """The turns of all branches, in the order in which they were asked."""
        return tuple(self._turns.values())

    @property
    def _last_id(self) -> int:
        return next(reversed(self._turns), 0)

    def turn(self, turn_id: int) -> Turn:
        """Raises KeyError."""
        return self._turns[turn_id]

    def branches(self, turn_id: int) -> tuple[Turn, ...]:
        return self._children_of(self._turns[turn_id].parent)

    def format_branch(self, turn_id: int) -> str:
        """`2 of 3` for a turn that has siblings; empty for one without."""
        ids = [branch.id for branch in self.branches(turn_id)]
        if len(ids) == 1:
            return ""
        return f"{ids.index(turn_id) + 1} of {len(ids)}"

    def undone_turns(self) -> tuple[Turn, ...]:
        """The turns after the head, which `undo` removed from the path, in order."""
        return self._children_of(self.head)

    def require_turns(self) -> None:
        """Raises UsageError if the path is empty."""
        if not self._path:
            raise UsageError("The chat is empty.", "Type a message.")

    def ask(
        self,
        question: str,
        attachments: Sequence[Attachment] = (),
        pictures: Sequence[PictureAttachment] = (),
    ) -> Turn:
        return self._append(
            Turn(
                question,
                attachments=tuple(attachments),
                pictures=tuple(pictures),
                parent=self.head,
            )
        )

    def add_results(self, results: Sequence[CallResult]) -> Turn:
        """Begin a tool step: the results of the calls with which the path ends."""
        return self._append(Turn("", results=tuple(results), parent=self.head))

    def update_turn(self, turn: Turn) -> None:
        """Store a turn's answer so far.

        Does nothing if the turn was removed from the chat.
        """
        if turn.id in self._turns:
            self._turns[turn.id] = turn
            self._path = self._path_to(self.head)

    def retry(self) -> Turn:
        """Regenerate the last answer with a new seed, as a new branch.

        Raises IndexError if there is no turn.
        """
        return self._append(self._path[-1].without_answer())

    def restart_answer(self) -> Turn:
        """Clear the last answer, which keeps its seed: the same text is generated again.

        Raises IndexError if there is no turn.
        """
        return self._replace_last(self._path[-1].without_answer())

    def set_model(self, model: str) -> Turn:
        return self._replace_last(replace(self._path[-1], model=model))

    def edit_turn(self, turn_id: int, question: str) -> Turn:
        """Ask another question in place of a turn, with its files, as a new branch.

        In place of a tool step, the question that it belongs to is asked anew.
        """
        turn = self.question_of(turn_id).without_answer()
        return self._append(replace(turn, question=question))

    def undo(self) -> Turn:
        """Remove the last question, with its tool steps, and return it.

        Raises IndexError if there is none.
        """
        return self.undo_to(self._path[-1].id)

    def undo_to(self, turn_id: int) -> Turn:
        """Remove a question and all that follows it from the path, and return it.

        A tool step's question is removed with it. Raises KeyError if the turn is not on
        the path.
        """
        removed = self.question_of(turn_id)
        if removed not in self._path:
            raise KeyError(turn_id)
        self._path = self._path[: self._path.index(removed)]
        return removed

    def switch_branch(self, turn_id: int) -> None:
        """Select the path through this turn that was extended last."""
        family = {turn_id}
        for turn in self.all_turns:  # A turn's parent has a smaller id.
            if turn.parent in family:
                family.add(turn.id)
        self._path = self._path_to(max(family))

    def take_snapshot(self) -> ConversationSnapshot:
        """For `restore`, which removes a question that was refused."""
        return dict(self._turns), self._path

    def restore(self, snapshot: ConversationSnapshot) -> None:
        turns, path = snapshot
        self._set_turns(turns.values())
        self._path = path

    def _children_of(self, parent: int | None) -> tuple[Turn, ...]:
        return tuple(self._turns[id_] for id_ in self._children.get(parent, ()))

    def _append(self, turn: Turn) -> Turn:
        """Make it the head, with a new id and attempt number."""
        attempts = [sibling.attempt for sibling in self._children_of(turn.parent)]
        new = replace(turn, id=self._last_id + 1, attempt=max(attempts, default=-1) + 1)
        self._turns[new.id] = new
        self._children.setdefault(new.parent, []).append(new.id)
        self._path = self._path_to(new.id)
        return new

    def _replace_last(self, turn: Turn) -> Turn:
        self._turns[turn.id] = turn
        self._path = (*self._path[:-1], turn)
        return turn

    def _path_to(self, head: int | None) -> tuple[Turn, ...]:
        path = []
        while head is not None:
            path.append(self._turns[head])
            head = path[-1].parent
        return tuple(reversed(path))

    def derive_seed(self, chat_seed: int | None = None) -> int:
        """The seed of the last turn's answer: new for a retry, the same for a replay.

        `chat_seed` replaces the chat's own seed.
        """
        import hashlib  # noqa: PLC0415  loads OpenSSL, and one answer needs no other seed

        seed = self.seed if chat_seed is None else chat_seed
        parts = (seed, len(self._path), self._path[-1].attempt)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    @property
    def active_dropped(self) -> DroppedTurns:
        """The dropped turns if the path begins with them, else none.

        The status bar asks at each frame, and a chat may have thousands of turns. So
        the checksum is computed only if the beginning of the path has changed. Its
        turns are mostly the same objects, which are compared in no time.
        """
        dropped = self.dropped
        beginning = self._path[: dropped.turns]
        checked = self._checked_dropped
        if checked.dropped != dropped or checked.beginning != beginning:
            is_prefix = dropped.is_prefix_of(beginning)
            checked = _CheckedDropped(dropped, beginning, is_prefix=is_prefix)
            self._checked_dropped = checked
        return dropped if checked.is_prefix else DroppedTurns()

    @property
    def dropped_before_last(self) -> DroppedTurns:
        """As `active_dropped`, but the last turn, which is answered, is never dropped."""
        dropped = self.active_dropped
        return dropped if dropped.turns < len(self._path) else DroppedTurns()

    def messages(self, dropped: DroppedTurns | None = None) -> tuple[ChatMessage, ...]:
        """The chat model's prompt: the sent turns and the last question.

        `dropped` replaces the conversation's own dropped turns; its checksum is not
        compared.
        """
        summary, turns, last = self._select_turns(dropped)
        return build_messages(
            self.system,
            summary,
            turns,
            last,
            picture_paths=self.picture_paths,
            thinking_markers=self.thinking_markers,
        )

    def prompt_text(self, dropped: DroppedTurns | None = None) -> str:
        """The completion model's prompt: the same turns as one text."""
        parts = [self.system]
        _, turns, last = self._select_turns(dropped)
        for turn in turns:
            _append_on_new_line(parts, _plain_question(turn))
            parts.append(turn.answer)
        _append_on_new_line(parts, _plain_question(last))
        return "".join(parts)

    def _select_turns(
        self, dropped: DroppedTurns | None
    ) -> tuple[str, Sequence[Turn], Turn]:
        """The summary of the dropped turns, the answered turns that are sent, the question."""
        if dropped is None:
            dropped = self.dropped_before_last
        return dropped.summary, self._path[dropped.turns : -1], self._path[-1]


def build_messages(
    system: str,
    summary: str,
    turns: Sequence[Turn],
    last: Turn,
    *,
    picture_paths: Mapping[str, str] = {},
    thinking_markers: tuple[str, str] | None = None,
) -> tuple[ChatMessage, ...]:
    """Build the messages of a chat. `summary` replaces the turns before `turns`.

    `picture_paths` and `thinking_markers`: as those of `Conversation`.
    """
    notes = []
    if system:
        notes.append(system)
    if summary:
        notes.append(f"{SUMMARY_HEADING}\n{summary}")
    messages: list[ChatMessage] = []
    if notes:
        messages.append(ChatMessage("system", "\n\n".join(notes)))
    for turn in turns:
        messages += build_asked(turn, picture_paths)
        messages.append(build_answer(turn, thinking_markers))
    return (*messages, *build_asked(last, picture_paths))


def build_answer(turn: Turn, thinking_markers: tuple[str, str] | None) -> ChatMessage:
    """An answer as the model wrote it; one with calls in its parts.

    Templates write calls, and the thinking before them, in their own form.
    """
    if not turn.calls:
        return ChatMessage(
            "assistant",
            turn.answer,
            turn.tokens,
            starts_in_thinking=turn.starts_in_thinking,
        )
    parts = turn.split_answer(thinking_markers)
    thinking = "".join(part.text for part in parts if part.is_thinking)
    said = "".join(part.text for part in parts if not part.is_thinking)
    return ChatMessage(
        "assistant",
        said.strip(),
        turn.tokens,
        tool_calls=turn.calls,
        reasoning=thinking.strip(),
    )


def build_asked(turn: Turn, picture_paths: Mapping[str, str]) -> list[ChatMessage]:
    """What a turn's answer answers: a question, or results of calls."""
    if not turn.is_tool_step:
        text = format_question(turn)
        return [_build_message("user", text, turn.pictures, picture_paths)]
    messages: list[ChatMessage] = []
    for result in turn.results:
        message = _build_message("tool", result.text, result.pictures, picture_paths)
        messages.append(replace(message, tool_call_id=result.call_id))
    return messages


def _build_message(
    role: str,
    text: str,
    pictures: Sequence[PictureAttachment],
    picture_paths: Mapping[str, str],
) -> ChatMessage:
    """A message whose pictures come before its text."""
    images = []
    lines = []
    for picture in pictures:
        path = picture_paths.get(picture.sha256)
        if path is None:
            unread = "not heard" if picture.is_audio else "not seen"
            what = f"{picture.word}: {picture.name}"
            lines.append(f"[{what}, {unread} by this model]")
        else:
            images.append(picture.refer(path))
    if not pictures:
        return ChatMessage(role, text)
    from localspec.models.pictures import without_marks  # noqa: PLC0415  it loads OpenSSL

    text = "\n".join([*lines, text]).rstrip("\n")
    return ChatMessage(role, without_marks(text), images=tuple(images))


_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def format_question(turn: Turn) -> str:
    """A question for a chat model: its files, named and fenced, then the typed text."""
    parts = []
    for file in turn.attachments:
        # The fence is longer than each fence in the file.
        fence = max(_FENCE.findall(file.text), default="``") + "`"
        parts.append(f"{file.name}:\n{fence}\n{file.text}\n{fence}")
    if turn.question:
        parts.append(turn.question)
    return "\n\n".join(parts)


def _plain_question(turn: Turn) -> str:
    """For a completion model: without file names and fences."""
    parts = [result.text for result in turn.results]
    parts += [file.text for file in turn.attachments]
    parts.append(turn.question)
    return "\n\n".join(parts)


def _append_on_new_line(parts: list[str], text: str) -> None:
    before = next((part for part in reversed(parts) if part), "")
    if before and text and not before.endswith("\n"):
        parts.append("\n")
    parts.append(text)
