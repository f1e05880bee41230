"""The linear chat: `localspec run` without a prompt, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import click

from localspec import launch
from localspec.chat import commands, settings
from localspec.chat.commands import Call, Unknown
from localspec.chat.context import Full, Writer
from localspec.chat.conversation import Mark
from localspec.chat.fields import Overflow
from localspec.chat.meter import How
from localspec.chat.turn import Attachment
from localspec.clean import clean
from localspec.cli import actions, marks, room, status
from localspec.cli.composer import Composer
from localspec.cli.signals import Stopper, ending_well
from localspec.cli.state import Opening, State
from localspec.cli.status import Answered
from localspec.cli.teller import Teller
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.protocol.events import Dead, Event, Finished, Ready, Round, encode
from localspec.units import count
from localspec.worker import ending

_UNANSWERED = "/set think_budget N ends thinking after N tokens; /think off leaves it out."
_ROOM = "/undo takes back the last turn, /clear all of them; --ctx N gives more room."


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
                self.state.keeper.close()
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
        self.state.keeper.pair = replace(
            self.state.keeper.pair, name=self.state.name, thinking=self.state.loaded.thinking
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
        for line in state.shown:
            self._say(line)
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
        before, attached = self.state.conversation.mark(), self.state.attached
        try:
            follows = self._understood(text)
            if follows == "quit":
                return 0
            if follows == "answer":
                return self._answer(before, attached)
            self.state.keep().moved()
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
        state.conversation.ask(commands.literal(text).rstrip("\r"), state.attached)
        state.attached = ()
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

    def _answer(self, before: Mark, attached: tuple[Attachment, ...]) -> int | None:
        """Answer the last turn; `before` is the chat as it was, should it be refused."""
        state, asked = self.state, self.state.conversation.turns[-1]
        state.keep().sent(asked)
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
            state.conversation.back_to(before)
            state.keeper.withdrawn(asked)
            state.attached = attached
            raise refusal
        state.conversation.hear(heard)
        state.keeper.ended()
        if refusal is not None:
            self._tell(refusal)
        self._conclude(engine, teller, heard, stopped_ms)
        return None

    def _reload(self, before: Mark) -> launch.Remembering:
        """After a death.  Where it fails nothing is lost, and Enter tries again."""
        conversation = self.state.conversation
        self.state.died = True
        self._say("Loading the pair again …")
        try:
            return self._open()
        except BaseException:
            if len(conversation.turns) == len(before.path):
                asked = conversation.turns[-1]
                conversation.back_to(before)
                self.state.keeper.withdrawn(asked)
            raise

    def _listen(
        self, engine: launch.Remembering, teller: Teller, heard: list[Event]
    ) -> float | None:
        """Hear the answer; how many ms it took to stop, where Ctrl+C stopped it."""
        state = self.state
        how = How(state.settings, state.loaded, self._opening.probabilities)

        def choose(full: Full) -> Overflow:
            teller.pause()
            return room.ask(full, self._say)

        stopped_ms, stopper = None, self._stopper
        with stopper.during(engine.stop):
            writer = Writer(engine, state.conversation, how, choose, lambda: stopper.pressed)
            for event in writer.events():
                heard.append(event)
                self._record(event)
                state.keeper.heard((event,))
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
        if state.last.unanswered:
            self._say(_UNANSWERED)
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
