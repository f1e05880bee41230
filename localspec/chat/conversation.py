"""The turns of one chat as a tree, of which one path is shown; and what to ask the engine next."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.protocol.events import Event, FinishReason, GenerationFinished, Prefill, Round
from localspec.protocol.wire import ChatMessage

SUMMARY_HEADING = "What was said before, in short:"
"""Begins the system note that stands for turns."""


@dataclass(frozen=True, slots=True)
class ConversationSnapshot:
    """A conversation as it was at a moment."""

    turns: Mapping[int, Turn]
    path: tuple[Turn, ...]


class Conversation:
    """Nothing that was said is lost by editing, answering again or taking back: it stays a branch.

    Of every turn but the last on the path there is an answer; the last may be in the making.
    """

    def __init__(
        self, seed: int, system: str = "", turns: Iterable[Turn] = (), head: int | None = None
    ) -> None:
        """`turns` and `head` as they were kept; each turn's parent has a smaller id."""
        self.seed = seed
        self.system = system
        self._turns = {turn.id: turn for turn in turns}
        self._path = self._path_to(head)
        self.dropped = DroppedTurns()

    # --- what there is --------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The path that is shown, from the beginning to the head."""
        return self._path

    @property
    def head(self) -> int | None:
        """The last turn of the path; None at the beginning."""
        return self._path[-1].id if self._path else None

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """Every turn of every branch, in the order in which they were asked."""
        return tuple(self._turns[id_] for id_ in sorted(self._turns))

    def turn(self, turn_id: int) -> Turn:
        """Raises KeyError where there is none."""
        return self._turns[turn_id]

    def branches(self, turn_id: int) -> tuple[Turn, ...]:
        """The turns that stand in one place: this one, and its siblings, in order."""
        return self._children_of(self._turns[turn_id].parent)

    def undone_turns(self) -> tuple[Turn, ...]:
        """The turns that were asked after the head, in order: what was taken back."""
        return self._children_of(self.head)

    # --- what becomes of it ---------------------------------------------------------------

    def ask(self, question: str, attachments: Sequence[Attachment] = ()) -> Turn:
        """Begin a turn after the head."""
        return self._append(Turn(question, attachments=tuple(attachments), parent=self.head))

    def add_events(self, events: Sequence[Event]) -> Turn:
        """Add what came from the engine to the last turn."""
        return self._replace_last(self._path[-1].with_events(events))

    def retry(self) -> Turn:
        """Answer the last question anew, with another seed.  Raises IndexError where none is."""
        last = self._path[-1]
        return self._append(Turn(last.question, attachments=last.attachments, parent=last.parent))

    def restart_answer(self) -> Turn:
        """Begin the last answer anew with the same seed: what was cut off comes again.

        Raises IndexError where there is none.
        """
        return self._replace_last(replace(self._path[-1], answer="", finish_reason=None, events=()))

    def set_model(self, model: str) -> Turn:
        """The last turn, with the name of the model that is to answer it."""
        return self._replace_last(replace(self._path[-1], model=model))

    def resume_answer(self) -> Turn:
        """Go on with the last answer where it ended.  Raises IndexError where there is none.

        What was told as its end is taken back: it comes with what follows.
        """
        return self._replace_last(self._path[-1].without_end())

    def edit_turn(self, turn_id: int, question: str) -> Turn:
        """Ask something else in place of a turn, with the same files; what came stays a branch."""
        turn = self._turns[turn_id]
        return self._append(Turn(question, attachments=turn.attachments, parent=turn.parent))

    def undo(self) -> Turn:
        """Leave the last turn: the one before is the head.  Raises IndexError where none is."""
        left = self._path[-1]
        self._path = self._path[:-1]
        return left

    def undo_to(self, turn_id: int) -> Turn:
        """Leave a turn of the path and all after it.  Raises KeyError where it is not on it."""
        place = [turn.id for turn in self._path]
        if turn_id not in place:
            raise KeyError(turn_id)
        left = self._path[place.index(turn_id)]
        self._path = self._path[: place.index(turn_id)]
        return left

    def switch_branch(self, turn_id: int) -> None:
        """Show the branch with this turn, as far as it was last written."""
        under = [turn.id for turn in self.all_turns if self._is_descendant(turn, turn_id)]
        self._path = self._path_to(max(under, default=turn_id))

    def take_snapshot(self) -> ConversationSnapshot:
        """To come back to where the next question is refused."""
        return ConversationSnapshot(dict(self._turns), self._path)

    def restore(self, snapshot: ConversationSnapshot) -> None:
        """As if nothing had been asked since."""
        self._turns, self._path = dict(snapshot.turns), snapshot.path

    def _children_of(self, parent: int | None) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.all_turns if turn.parent == parent)

    def _is_descendant(self, turn: Turn, ancestor: int) -> bool:
        parent = turn.parent
        while parent is not None and parent > ancestor:
            parent = self._turns[parent].parent
        return parent == ancestor

    def _append(self, turn: Turn) -> Turn:
        """Make it the head, with an id and a seed of its own."""
        attempts = [sibling.attempt for sibling in self._children_of(turn.parent)]
        new = replace(
            turn, id=max(self._turns, default=0) + 1, attempt=max(attempts, default=-1) + 1
        )
        self._turns[new.id] = new
        self._path = self._path_to(new.id)
        return new

    def _replace_last(self, turn: Turn) -> Turn:
        """In place of the last."""
        self._turns[turn.id] = turn
        self._path = (*self._path[:-1], turn)
        return turn

    def _path_to(self, head: int | None) -> tuple[Turn, ...]:
        path = []
        while head is not None:
            path.append(self._turns[head])
            head = path[-1].parent
        return tuple(reversed(path))

    # --- what to ask ----------------------------------------------------------------------

    @property
    def answer_seed(self) -> int:
        """Of the last turn: a retry differs, a replay does not."""
        parts = (self.seed, len(self._path), self._path[-1].attempt)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def messages(
        self, dropped: DroppedTurns | None = None, next_question: str | None = None
    ) -> tuple[ChatMessage, ...]:
        """What a chat model is asked: all turns that are sent, up to the question of the last.

        By another cut than its own, to see what that would be.  With `more` that is the question,
        and the last turn is one that was answered.
        """
        return build_messages(self.system, *self._select_turns(dropped, next_question))

    def prompt_text(
        self, dropped: DroppedTurns | None = None, next_question: str | None = None
    ) -> str:
        """What a completion model is asked: everything that is sent, as one text."""
        text = self.system
        _, turns, last = self._select_turns(dropped, next_question)
        for turn in turns:
            text = _join_on_new_line(text, _plain_question(turn)) + turn.answer
        return _join_on_new_line(text, _plain_question(last))

    def _select_turns(
        self, dropped: DroppedTurns | None, next_question: str | None
    ) -> tuple[str, Sequence[Turn], Turn]:
        """The summary of what is cut off, the turns that were answered, and the question."""
        last = Turn(next_question) if next_question is not None else self._path[-1]
        before = self._path if next_question is not None else self._path[:-1]
        dropped = self.dropped if dropped is None else dropped
        dropped = dropped if dropped.is_prefix_of(before) else DroppedTurns()
        return dropped.summary, before[dropped.turns :], last


def build_messages(
    system: str, summary: str, turns: Sequence[Turn], last: Turn
) -> tuple[ChatMessage, ...]:
    """The messages of a chat; the summary stands for what was said before these turns."""
    note = f"{SUMMARY_HEADING}\n{summary}" if summary else ""
    system = "\n\n".join(filter(None, (system, note)))
    found = [ChatMessage("system", system)] if system else []
    for turn in turns:
        found.append(ChatMessage("user", format_question(turn)))
        found.append(ChatMessage("assistant", turn.answer, turn.tokens))
    return (*found, ChatMessage("user", format_question(last)))


_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def format_question(turn: Turn) -> str:
    """A question as a chat model reads it: its files by name and fenced, then what was typed."""
    parts = []
    for file in turn.attachments:
        fence = max(_FENCE.findall(file.text), default="``") + "`"
        parts.append(f"{file.name}:\n{fence}\n{file.text}\n{fence}")
    return "\n\n".join([*parts, turn.question] if turn.question else parts)


def _plain_question(turn: Turn) -> str:
    """As a completion model reads it: the same without names and fences."""
    return "\n\n".join([*(file.text for file in turn.attachments), turn.question])


def _join_on_new_line(before: str, more: str) -> str:
    """What a person adds begins on a line of its own; nothing added, nothing between."""
    if not before or not more or before.endswith("\n"):
        return before + more
    return f"{before}\n{more}"


# --- One question and its answer, and what may stand in the place of several.


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that belongs to a question."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer so far; `question` is empty where a text was only continued."""

    question: str
    answer: str = ""
    """Every character the model said, thinking included, as it came."""
    finish_reason: FinishReason | None = None
    """Why the answer ended; None while it is being written, or where it was interrupted."""
    attempt: int = 0
    """Makes its seed another than that of every other turn after the same one."""
    events: tuple[Event, ...] = ()
    """Those of the answer, for the token view and the replay."""
    attachments: tuple[Attachment, ...] = ()
    id: int = 0
    """Its own in its chat, larger than those of all earlier turns."""
    parent: int | None = None
    """The turn that it follows; None at the beginning of the chat."""
    model: str = ""
    """The name of the one that answers; empty where nobody knows."""

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(event for event in self.events if isinstance(event, Round))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The answer's, as they came."""
        return tuple(token.id for heard in self.rounds for token in heard.tokens)

    @property
    def starts_in_thinking(self) -> bool:
        """Whether the answer began inside a thinking part."""
        return any(isinstance(event, Prefill) and event.thinking for event in self.events)

    @property
    def ends_in_thinking(self) -> bool:
        """Whether the answer ended before its thinking did."""
        ends = (event.totals for event in self.events if isinstance(event, GenerationFinished))
        return any(totals.get("thinking", {}).get("open") for totals in ends)

    def with_events(self, events: Sequence[Event]) -> Turn:
        """The turn, with what just came from the engine."""
        text = [self.answer]
        reason = self.finish_reason
        for event in events:
            if isinstance(event, Round):
                text += [token.text for token in event.tokens]
            elif isinstance(event, GenerationFinished):
                text.append(event.tail)
                reason = event.reason
        return replace(
            self, answer="".join(text), finish_reason=reason, events=(*self.events, *events)
        )

    def without_end(self) -> Turn:
        """The turn as if its answer had not ended."""
        ends = [event for event in self.events if isinstance(event, GenerationFinished)]
        answer = self.answer.removesuffix(ends[-1].tail) if ends else self.answer
        events = tuple(event for event in self.events if not isinstance(event, GenerationFinished))
        return replace(self, answer=answer, finish_reason=None, events=events)


@dataclass(frozen=True, slots=True)
class DroppedTurns:
    """The oldest turns of a chat, which the model is not sent any more."""

    turns: int = 0
    """How many."""
    summary: str = ""
    """What stands for them, in the model's own words; empty where nothing does."""
    seal: int = 0
    """Made of what they say: on a path that begins otherwise the cut does not count."""

    @classmethod
    def from_turns(cls, turns: Sequence[Turn], summary: str = "") -> DroppedTurns:
        """That of these turns, from the first."""
        return cls(len(turns), summary, _checksum(turns))

    def is_prefix_of(self, turns: Sequence[Turn]) -> bool:
        """Whether these turns begin with those that are cut off."""
        return self.turns <= len(turns) and self.seal == _checksum(turns[: self.turns])


def _checksum(turns: Sequence[Turn]) -> int:
    seal = 0
    for turn in turns:
        seal = zlib.crc32(repr((turn.question, turn.answer)).encode(), seal)
    return seal
