"""Reading a chat: its transcript scrolled, its tokens looked at, its answers replayed or copied."""

from __future__ import annotations

from textual import on
from textual.screen import Screen

from localspec.chat.thinking import said
from localspec.chat.turn import Turn
from localspec.clean import clean
from localspec.tui import clipping
from localspec.tui.dialogue import Dialogue, branch, ending
from localspec.tui.options import Options
from localspec.tui.screens.replay import ReplayScreen
from localspec.tui.text.turn import Speaker
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.story import Story
from localspec.tui.widgets.transcript import Transcript


class ReadingScreen(Screen[None]):
    """What a chat's screen can do without an engine; the parts are composed by whoever has one."""

    def __init__(self, dialogue: Dialogue, options: Options) -> None:
        super().__init__()
        self.dialogue = dialogue
        self.options = options

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    def draw(self, state: str = "") -> None:
        """Everything that is not the transcript."""
        raise NotImplementedError

    # --- the path -------------------------------------------------------------------------

    def show_turn(self, turn: Turn) -> None:
        """One more, at the end; before a pair is loaded it is taken for a chat model's."""
        loaded = self.dialogue.loaded
        raw = loaded is not None and not loaded.chats
        name = clean(turn.model, multiline=False) or self.dialogue.model
        speaker = Speaker(name, self.dialogue.thinking, raw)
        self.transcript.add(turn, speaker, branch(self.dialogue.conversation, turn))

    def show_path(self) -> None:
        """All turns anew: another branch, or another chat."""
        self.transcript.clear()
        for turn in self.dialogue.conversation.turns:
            self.show_turn(turn)
            self.transcript.heard(turn.events)
            self.transcript.end(ending(turn, None))

    def inspect(self) -> None:
        """Find out the chances of the last answer's tokens, where they are not known."""

    # --- tokens ---------------------------------------------------------------------------

    async def action_tokens(self) -> None:
        """Show or hide how the tokens came."""
        shown = not self.transcript.tokens
        self.query_one(Story).display = shown
        self.transcript.show_tokens(shown)
        if shown:
            self.inspect()
        if not self.transcript.walking:
            self.composer.focus()
        self.draw()

    def action_walk(self) -> None:
        """From the composer to the tokens, where they are shown; tab leads back."""
        if self.transcript.tokens and self.transcript.turns:
            self.transcript.enter()
            self.draw()

    @on(Transcript.Left)
    def _left(self) -> None:
        self.composer.focus()
        self.draw()

    @on(Transcript.Pointed)
    def _pointed(self, message: Transcript.Pointed) -> None:
        self.set_class(self.transcript.walking, "-walking")
        self.query_one(Story).tell(message.token, message.round, self.transcript.marks)

    # --- answers --------------------------------------------------------------------------

    def action_replay(self) -> None:
        self._replay(len(self.dialogue.conversation.turns) - 1)

    @on(Transcript.ReplayWanted)
    def _replay_wanted(self, message: Transcript.ReplayWanted) -> None:
        self._replay(message.turn)

    def _replay(self, number: int) -> None:
        turns = self.dialogue.conversation.turns
        if 0 <= number < len(turns) and turns[number].rounds:
            turn = turns[number]
            self.app.push_screen(ReplayScreen(turn.question, turn.rounds, self.options))
        else:
            self.notify("There is no answer to replay yet.", markup=False)

    def action_copy(self) -> None:
        turns = self.dialogue.conversation.turns
        last = turns[-1] if turns else None
        text = said(last.answer, self.dialogue.thinking, last.begins_inside) if last else ""
        if text:
            self.notify(clipping.copy(self.app, text), markup=False)
        else:
            self.notify("There is no answer to copy yet.", markup=False)

    def action_thinking(self) -> None:
        """The setting itself, which is kept with the chat."""
        self.dialogue.change(show_thinking=not self.dialogue.settings.show_thinking)
        self.draw()

    def preferred(self) -> None:
        """Something was changed in the preferences."""
        if self.transcript.marks != self.options.marks:
            self.transcript.toggle_marks()

    # --- scrolling ------------------------------------------------------------------------

    def action_page_up(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.transcript.scroll_page_down(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_end(self) -> None:
        self.transcript.follow()
