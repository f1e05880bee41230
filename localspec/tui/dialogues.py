"""The chats of this session, by their pairs, and those that are kept."""

from __future__ import annotations

from dataclasses import replace

from localspec import launch
from localspec.chat.history import History
from localspec.launch import Choice
from localspec.tui.dialogue import Dialogue
from localspec.tui.options import Options

_WITH_ROUNDS = 40
"""Turns of a chat whose tokens are read with it; of longer ones that would take seconds."""


class Dialogues:
    """One chat of a pair at a time; leaving it does not lose it, and the others are kept."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: dict[Choice, Dialogue] = {}

    @property
    def history(self) -> History | None:
        return self._options.chats.history if self._options.chats else None

    def of(self, choice: Choice) -> Dialogue:
        """That of a pair, or a new one."""
        if choice not in self._open:
            new = Dialogue(choice, self._options.seed, self.history)
            self._settle(new)
            self._open[choice] = new
        return self._open[choice]

    def _settle(self, new: Dialogue) -> None:
        """As a person wants every new chat."""
        wanted = self._options
        spec = launch.preferred_drafter(new.choice, wanted.spec)
        new.change(overflow=wanted.overflow, show_thinking=wanted.show_thinking, spec=spec)
        if wanted.temperature is not None:
            warmth = replace(new.settings.sampling, temperature=wanted.temperature)
            new.change(sampling=warmth)

    def turns(self, choice: Choice) -> int:
        """How many it has."""
        known = self._open.get(choice)
        return len(known.conversation.turns) if known else 0

    def go_on(self, chat: int) -> Dialogue:
        """A chat that was kept; one of this session as it stands.

        Raises NotFoundError where it, or a file of its pair, is gone; whatever `launch.choose`
        raises.
        """
        for dialogue in self._open.values():
            if dialogue.keeper.chat == chat:
                return dialogue
        assert self.history is not None, "it was listed by somebody"
        few = self.history.about(chat).turns <= _WITH_ROUNDS
        kept = self.history.read(chat, rounds=few)
        choice = launch.choose(kept.listed.pair.model, kept.listed.pair.draft)
        if (before := self._open.get(choice)) is not None:
            before.close()
        self._open[choice] = Dialogue(choice, history=self.history, kept=kept)
        return self._open[choice]

    def remove(self, chat: int) -> None:
        """For good.  Raises InUseError where another window has it."""
        for choice, dialogue in list(self._open.items()):
            if dialogue.keeper.chat == chat:
                self._open.pop(choice).close()
        if self.history is not None:
            self.history.remove([chat])

    def close(self) -> None:
        """Other windows may have them all."""
        for dialogue in self._open.values():
            dialogue.close()
        if self._options.chats is not None:
            self._options.chats.close()
