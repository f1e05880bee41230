"""The linear chat: `localspec run` without a prompt, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import click

from localspec import launch
from localspec.chat import commands, settings
from localspec.chat.commands import Call, Unknown
from localspec.chat.conversation import Turn
from localspec.clean import clean
from localspec.cli import actions, marks, status
from localspec.cli.composer import Composer
from localspec.cli.signals import Stopper, ending_well
from localspec.cli.state import State
from localspec.cli.status import Answered
from localspec.cli.teller import Teller
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.fit.advisor import Wish
from localspec.protocol.events import Dead, Event, Finished, Ready, Round, encode
from localspec.units import count
from localspec.worker import ending

_ROOM = "/undo takes back the last turn, /clear all of them; --ctx N gives more room."


@dataclass(frozen=True, slots=True)
class Opening:
    """How the pair is loaded, now and after a death."""

    wish: Wish
    choice: launch.Choice
    raw: bool = False
    template: str | None = None
    stats: bool = False
    """Whether the numbers of each answer are shown."""
    probabilities: bool = False
    say: Callable[[Event], None] = lambda _: None
    log: TextIO | None = None
    """Where every event goes."""


class Chat:
    """Asks and answers in turns; the engine may die at any time, the conversation stays."""

    def __init__(self, opening: Opening, state: State) -> None:
        self._opening, self.state = opening, state
        self._engine: launch.Remembering | None = None
        self._composer = Composer("You: " if state.look.plain else "> ")
        self._stopper = Stopper()
        self._hinted = False

    def run(self, loaded: Callable[[Ready], None] = lambda _: None) -> int:
        """Until the person leaves; the exit code.  Raises where the pair cannot be loaded."""
        with ending_well():
            try:
                self._open()
                assert self.state.ready is not None
                loaded(self.state.ready)
                self._welcome()
                while (code := self._turn()) is None:
                    pass
                return code
            finally:
                self._close()

    # --- the engine -----------------------------------------------------------------------

    def _open(self) -> launch.Remembering:
        opening, choice = self._opening, self._opening.choice
        probe = self.state.settings.spec == "auto" and choice.spec == "auto"
        self._engine = launch.start(opening.wish, probe=probe, say=opening.say)
        ready = self._engine.ready
        self.state.ready = ready
        self.state.loaded = settings.Loaded.of(
            ready, choice.spec, choice.why, raw=opening.raw, template=opening.template
        )
        self._record(ready)
        for notice in ready.notices:
            self._say(f"localspec: {clean(notice.message, multiline=False)}")
        return self._engine

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _welcome(self) -> None:
        state = self.state
        assert state.ready is not None
        draft = clean(state.ready.draft or "", multiline=False)
        joint = ", drafted by " if state.look.plain else " with "
        pair = f"{state.name}{joint}{draft.removesuffix('.gguf')}" if draft else state.name
        if state.look.plain:
            self._say(f"Chat with {pair}. Type /help for commands, /exit to quit.")
        else:
            n_ctx = count(state.loaded.n_ctx)
            self._say(f"{pair} · context {n_ctx} · /help shows commands, Ctrl+D quits")
        if not state.loaded.chats:
            self._say("This model completes text: it goes on with what you type. Enter: more.")
        if state.tokens and not state.look.plain:
            self._say(marks.legend(state.look.colour))

    # --- one turn -------------------------------------------------------------------------

    def _turn(self) -> int | None:
        """Read what was typed, and do it; an exit code ends the chat."""
        begun, self.state.begun = self.state.begun, ""
        try:
            text = self._composer.message(begun)
        except EOFError:
            self._say("")
            return 0
        except KeyboardInterrupt:
            return self._interrupted()
        self._hinted = False
        before, attached = list(self.state.conversation.turns), self.state.attached
        try:
            follows = self._understood(text)
            if follows == "quit":
                return 0
            return self._answer(before, attached) if follows == "answer" else None
        except LocalspecError as error:
            self._tell(error)
        except KeyboardInterrupt:  # while it loads again, say
            self._say("\nInterrupted.")
        return None

    def _interrupted(self) -> int | None:
        """Ctrl+C at the prompt: the second time, or right after it stopped an answer, quits."""
        self._say("")
        if self._hinted or self._stopper.recent:
            return 130
        self._hinted = True
        self._say("Ctrl+C once more, or Ctrl+D, quits.")
        return None

    def _understood(self, text: str) -> actions.Next:
        state = self.state
        found = commands.parse(text)
        if isinstance(found, Call):
            return actions.act(found, state, self._say)
        if isinstance(found, Unknown):
            near = f" Did you mean {found.nearest}?" if found.nearest else ""
            self._say(f"There is no {found.text}.{near} /help shows all.")
            return "ask"
        if not text.strip() and not state.attached:
            return self._nothing_typed()
        state.conversation.ask((state.attached + commands.literal(text)).rstrip("\r"))
        state.attached = ""
        return "answer"

    def _nothing_typed(self) -> actions.Next:
        """Enter alone: again after a death, on with a text, else a hint."""
        state = self.state
        if state.died:
            state.conversation.restart()
            return "answer"
        if not state.loaded.chats and state.conversation.turns:
            state.conversation.ask("")
            return "answer"
        self._say("Type a message; /help shows commands.")
        return "ask"

    # --- one answer -----------------------------------------------------------------------

    def _answer(self, before: list[Turn], attached: str) -> int | None:
        """Answer the last turn; `before` are the turns as they were, should it be refused."""
        state = self.state
        engine = self._engine or self._reload(before)
        teller = Teller(
            state.look,
            state.name,
            state.loaded.thinking,
            tokens=state.tokens,
            show_thinking=state.settings.show_thinking,
        )
        heard: list[Event] = []
        refusal: LocalspecError | None = None
        try:
            stopped_ms = self._listen(engine, teller, heard)
        except KeyboardInterrupt:
            return 130
        except LocalspecError as error:
            refusal, stopped_ms = error, None
        finally:
            teller.end()
        if refusal is not None and not any(isinstance(event, Round) for event in heard):
            state.conversation.turns[:], state.attached = before, attached
            raise refusal
        state.conversation.hear(heard)
        if refusal is not None:
            self._tell(refusal)
        self._conclude(engine, teller, heard, stopped_ms)
        return None

    def _reload(self, before: list[Turn]) -> launch.Remembering:
        """After a death.  Where it fails nothing is lost, and Enter tries again."""
        turns = self.state.conversation.turns
        self.state.died = True
        self._say("Loading the pair again …")
        try:
            return self._open()
        except BaseException:
            if len(turns) == len(before):
                turns[:] = before
            raise

    def _listen(
        self, engine: launch.Remembering, teller: Teller, heard: list[Event]
    ) -> float | None:
        """Hear the answer; how many ms it took to stop, where Ctrl+C stopped it."""
        state = self.state
        asked = settings.request(
            state.settings,
            state.conversation,
            state.loaded,
            probabilities=self._opening.probabilities,
        )
        stopped_ms = None
        with self._stopper.during(engine.stop):
            for event in engine.generate(asked):
                heard.append(event)
                self._record(event)
                teller.take(event)
                if isinstance(event, Finished):
                    stopped_ms = self._stopper.ms
                elif self._stopper.pressed:  # perhaps before the engine had anything to stop
                    engine.stop()
        return stopped_ms

    def _conclude(
        self,
        engine: launch.Remembering,
        teller: Teller,
        heard: list[Event],
        stopped_ms: float | None,
    ) -> None:
        """What is said under an answer, or of a death."""
        state = self.state
        state.died = bool(heard) and isinstance(heard[-1], Dead)
        for event in heard[-1:]:
            if isinstance(event, Dead):
                self._close()
                self._tell(ending.error(event))
                self._say("Nothing is lost. Enter, or /retry, loads the pair again and answers.")
        if teller.finished is None:
            return
        measured = engine.worker.measured
        state.last = Answered(
            teller.finished,
            teller.totals,
            teller.plan,
            1e3 / measured.t1_ms if measured else None,
            state.loaded.n_ctx,
            stopped_ms,
        )
        if state.look.plain:
            self._say(status.sentences(state.last))
        else:
            words = status.line(state.last)
            self._say(click.style(words, dim=True) if state.look.colour else words)
        if state.last.full:
            self._say(_ROOM)
        if self._opening.stats:
            actions.act(Call("stats"), state, self._say)

    # --- talk -----------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        if self._opening.log is not None:
            self._opening.log.write(encode(event) + "\n")

    def _say(self, line: str) -> None:
        sys.stdout.flush()
        click.echo(line, err=True, color=self.state.look.colour)

    def _tell(self, error: LocalspecError) -> None:
        self._say(f"localspec: {clean(error.message, multiline=False)}")
        for hint in (clean(error.hint, multiline=False), *_more_hints(error)):
            if hint:
                self._say(f"  {hint}")


def _more_hints(error: LocalspecError) -> tuple[str, ...]:
    if isinstance(error, PromptTooLongError):
        return (_ROOM, "Your message was not sent; Up brings it back.")
    return ()
