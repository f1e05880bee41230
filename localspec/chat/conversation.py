"""The turns of one chat as a tree, of which one path is shown; and what to ask the engine next."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.chat.turn import Attachment, Cut, Turn
from localspec.protocol.events import Event
from localspec.protocol.wire import Message

SUMMARY = "What was said before, in short:"
"""Begins the system note that stands for turns."""


@dataclass(frozen=True, slots=True)
class Mark:
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
        self.cut = Cut()

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
    def all(self) -> tuple[Turn, ...]:
        """Every turn of every branch, in the order in which they were asked."""
        return tuple(self._turns[id_] for id_ in sorted(self._turns))

    def turn(self, turn_id: int) -> Turn:
        """Raises KeyError where there is none."""
        return self._turns[turn_id]

    def branches(self, turn_id: int) -> tuple[Turn, ...]:
        """The turns that stand in one place: this one, and its siblings, in order."""
        return self._after(self._turns[turn_id].parent)

    def following(self) -> tuple[Turn, ...]:
        """The turns that were asked after the head, in order: what was taken back."""
        return self._after(self.head)

    # --- what becomes of it ---------------------------------------------------------------

    def ask(self, question: str, attached: Sequence[Attachment] = ()) -> Turn:
        """Begin a turn after the head."""
        return self._add(Turn(question, attached=tuple(attached), parent=self.head))

    def hear(self, events: Sequence[Event]) -> Turn:
        """Add what came from the engine to the last turn."""
        return self._put(self._path[-1].heard(events))

    def again(self) -> Turn:
        """Answer the last question anew, with another seed.  Raises IndexError where none is."""
        last = self._path[-1]
        return self._add(Turn(last.question, attached=last.attached, parent=last.parent))

    def restart(self) -> Turn:
        """Begin the last answer anew with the same seed: what was cut off comes again.

        Raises IndexError where there is none.
        """
        return self._put(replace(self._path[-1], answer="", reason=None, events=()))

    def signed(self, model: str) -> Turn:
        """The last turn, with the name of the model that is to answer it."""
        return self._put(replace(self._path[-1], model=model))

    def resume(self) -> Turn:
        """Go on with the last answer where it ended.  Raises IndexError where there is none.

        What was told as its end is taken back: it comes with what follows.
        """
        return self._put(self._path[-1].resumed())

    def edit(self, turn_id: int, question: str) -> Turn:
        """Ask something else in place of a turn, with the same files; what came stays a branch."""
        turn = self._turns[turn_id]
        return self._add(Turn(question, attached=turn.attached, parent=turn.parent))

    def undo(self) -> Turn:
        """Leave the last turn: the one before is the head.  Raises IndexError where none is."""
        left = self._path[-1]
        self._path = self._path[:-1]
        return left

    def leave(self, turn_id: int) -> Turn:
        """Leave a turn of the path and all after it.  Raises KeyError where it is not on it."""
        place = [turn.id for turn in self._path]
        if turn_id not in place:
            raise KeyError(turn_id)
        left = self._path[place.index(turn_id)]
        self._path = self._path[: place.index(turn_id)]
        return left

    def switch(self, turn_id: int) -> None:
        """Show the branch with this turn, as far as it was last written."""
        under = [turn.id for turn in self.all if self._is_under(turn, turn_id)]
        self._path = self._path_to(max(under, default=turn_id))

    def mark(self) -> Mark:
        """To come back to where the next question is refused."""
        return Mark(dict(self._turns), self._path)

    def back_to(self, mark: Mark) -> None:
        """As if nothing had been asked since."""
        self._turns, self._path = dict(mark.turns), mark.path

    def _after(self, parent: int | None) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.all if turn.parent == parent)

    def _is_under(self, turn: Turn, ancestor: int) -> bool:
        parent = turn.parent
        while parent is not None and parent > ancestor:
            parent = self._turns[parent].parent
        return parent == ancestor

    def _add(self, turn: Turn) -> Turn:
        """Make it the head, with an id and a seed of its own."""
        attempts = [sibling.attempt for sibling in self._after(turn.parent)]
        new = replace(
            turn, id=max(self._turns, default=0) + 1, attempt=max(attempts, default=-1) + 1
        )
        self._turns[new.id] = new
        self._path = self._path_to(new.id)
        return new

    def _put(self, turn: Turn) -> Turn:
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

    def messages(self, cut: Cut | None = None, more: str | None = None) -> tuple[Message, ...]:
        """What a chat model is asked: all turns that are sent, up to the question of the last.

        By another cut than its own, to see what that would be.  With `more` that is the question,
        and the last turn is one that was answered.
        """
        return chat_of(self.system, *self._sent(cut, more))

    def text(self, cut: Cut | None = None, more: str | None = None) -> str:
        """What a completion model is asked: everything that is sent, as one text."""
        text = self.system
        _, turns, last = self._sent(cut, more)
        for turn in turns:
            text = _joined(text, _bare(turn)) + turn.answer
        return _joined(text, _bare(last))

    def _sent(self, cut: Cut | None, more: str | None) -> tuple[str, Sequence[Turn], Turn]:
        """The summary of what is cut off, the turns that were answered, and the question."""
        last = Turn(more) if more is not None else self._path[-1]
        before = self._path if more is not None else self._path[:-1]
        cut = self.cut if cut is None else cut
        cut = cut if cut.holds(before) else Cut()
        return cut.summary, before[cut.turns :], last


def chat_of(system: str, summary: str, turns: Sequence[Turn], last: Turn) -> tuple[Message, ...]:
    """The messages of a chat; the summary stands for what was said before these turns."""
    note = f"{SUMMARY}\n{summary}" if summary else ""
    system = "\n\n".join(filter(None, (system, note)))
    found = [Message("system", system)] if system else []
    for turn in turns:
        found.append(Message("user", message(turn)))
        found.append(Message("assistant", turn.answer, turn.tokens))
    return (*found, Message("user", message(last)))


_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def message(turn: Turn) -> str:
    """A question as a chat model reads it: its files by name and fenced, then what was typed."""
    parts = []
    for file in turn.attached:
        fence = max(_FENCE.findall(file.text), default="``") + "`"
        parts.append(f"{file.name}:\n{fence}\n{file.text}\n{fence}")
    return "\n\n".join([*parts, turn.question] if turn.question else parts)


def _bare(turn: Turn) -> str:
    """As a completion model reads it: the same without names and fences."""
    return "\n\n".join([*(file.text for file in turn.attached), turn.question])


def _joined(before: str, more: str) -> str:
    """What a person adds begins on a line of its own; nothing added, nothing between."""
    if not before or not more or before.endswith("\n"):
        return before + more
    return f"{before}\n{more}"
