"""A chat session: a conversation with its settings and history, and the answers of an
engine.

It has no terminal and starts no thread: a front end starts a turn, iterates
`stream_answer` with a loaded engine and shows the deltas. Another thread may meanwhile
read, and call `stop`.
"""

from __future__ import annotations

import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from localspec import launch
from localspec.chat import export
from localspec.chat.answer import AnswerDelta, GeneratedAnswer, replay_turn
from localspec.chat.context_window import (
    AnswerGenerator,
    OverflowChooser,
    RequestOptions,
)
from localspec.chat.conversation import (
    Attachment,
    Conversation,
    ConversationSnapshot,
    Turn,
    format_question,
)
from localspec.chat.examples import EXAMPLES
from localspec.chat.history import ChatHistory, ChatPair, SavedChat
from localspec.chat.presets import Preset
from localspec.chat.recorder import ChatRecorder, make_title
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.chat.speculation_stats import SpeculationStats
from localspec.errors import LocalspecError, NotFoundError, StorageError, UsageError
from localspec.launch import SETTINGS_NOTICE, Engine, ResolvedPair
from localspec.models.local_files import inventory
from localspec.protocol.events import Event, GenerationFinished, Notice, Round
from localspec.protocol.wire import GenerateCommand, InspectCommand
from localspec.sanitize import sanitize
from localspec.text_decoding import decode_text

_MAX_FILE_BYTES = 4 * 1024 * 1024
_CODE_MODEL = re.compile(r"code|codestral|^demo-", re.IGNORECASE)
# Of usual vocabularies, until an answer has `_MIN_SAMPLE` tokens.
_BYTES_PER_TOKEN = 4.0
_MIN_SAMPLE = 32


class ChatSession:
    """One conversation; the engine that answers is attached after each load."""

    _n_examples = 0  # That were suggested.
    _copy_name = ""  # Of the converted copy that is loaded in place of the target.
    typed_texts: list[str]  # Messages to recall, sent or not, the latest last.
    draft = ""  # Typed and not sent when the chat was left.
    _typed_question = ""
    _before_turn: tuple[ConversationSnapshot, tuple[Attachment, ...]]
    previous_pair: ResolvedPair | None = None  # The pair before the last `change_pair`.

    def __init__(
        self,
        pair: ResolvedPair,
        seed: int | None = None,
        history: ChatHistory | None = None,
        saved_chat: SavedChat | None = None,
        *,
        settings: ChatSettings | None = None,
        system: str = "",
    ) -> None:
        """`settings` and `system` are those of a new chat."""
        self.pair, self._initial_system = pair, system
        self._initial_settings = settings or ChatSettings.from_catalog(
            pair.suggested_settings
        )
        self.settings = self._initial_settings
        self.conversation = Conversation(
            random.getrandbits(31) if seed is None else seed, system
        )
        model, draft = pair.portable_refs
        names = ChatPair(model, draft, self.model_name)
        if saved_chat is not None:
            self.settings, self.conversation = (
                saved_chat.settings,
                saved_chat.conversation,
            )
            names = replace(names, thinking=saved_chat.list_entry.pair.thinking)
        self._notices: deque[Notice] = deque()
        self._shown_template_notices: set[str] = set()
        self.recorder = ChatRecorder(
            self.conversation,
            history,
            names,
            saved_chat=saved_chat,
            notify=self._notices.append,
        )
        self.saves_new_chats = True
        self.pending_attachments: tuple[Attachment, ...] = ()
        """Files to send with the next question."""
        self.typed_texts = [
            turn.question for turn in self.conversation.turns if turn.question
        ]
        self.stats = SpeculationStats(answer=self._replay_last_answer())
        self.last_drafter = "auto"  # before speculation was turned off
        # The loaded pair; None until the first load.
        self.loaded: LoadedModel | None = None
        # The settings the pair was loaded with, and the reasons.
        self.settings_summary = ""
        self.is_answering = self._stop_requested = False
        self.withdrawn_question: str | None = None
        """Set if the last turn was withdrawn: its question, or empty if that was not
        typed.
        """
        self._engine: Engine | None = None  # the one that answers now
        self._last_request: GenerateCommand | None = None
        self._exported_paths: set[Path] = set()

    def _replay_last_answer(self, *, with_rounds: bool = True) -> GeneratedAnswer:
        """For the statistics of a chat that is opened again, or by another pair."""
        last = self.conversation.turns[-1] if self.conversation.turns else Turn("")
        if not with_rounds:
            last = replace(
                last, events=tuple(e for e in last.events if not isinstance(e, Round))
            )
        return replay_turn(last, self.thinking_markers)[0]

    # --- reading
    # --------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        return self._copy_name or self.pair.target_name

    @property
    def example_beginning(self) -> str:
        """The beginning of a text, of the kind that a text-completion model was made
        for.
        """
        return (
            "def fibonacci(n):"
            if _CODE_MODEL.search(self.model_name)
            else "Once upon a time"
        )

    def next_example(self) -> str:
        """The next example message for a chat that is empty; none in others."""
        if self.conversation.turns or self.loaded is None or self.completes_text:
            return ""
        self._n_examples += 1
        return EXAMPLES[(self._n_examples - 1) % len(EXAMPLES)]

    @property
    def pair_name(self) -> str:
        return " + ".join(filter(None, (self.model_name, self.pair.draft_name)))

    @property
    def load_key(self) -> tuple[ResolvedPair, int | None, bool]:
        """Pair, context size and exact mode: if they change, the pair must be loaded
        again.
        """
        return self.pair, self.settings.ctx, self.settings.exact

    @property
    def title(self) -> str:
        return sanitize(
            self.recorder.title or make_title(self.conversation), multiline=False
        )

    @property
    def thinking_markers(self) -> tuple[str, str] | None:
        """The start and end markers of the thinking; None: unknown, or the model has
        none.
        """
        return self.recorder.pair.thinking

    @property
    def answer(self) -> GeneratedAnswer:
        """The answer being generated, or the last one."""
        return self.stats.answer

    @property
    def next_speculation(self) -> str:
        """The announcement if the settings turn speculation on or off from the next
        answer on.
        """
        last = self._last_request
        if last is None or self.loaded is None or self.stats.plan is None:
            return ""
        states = {"off": "OFF", "auto": "PAUSED" if self.is_paused else "ON"}
        state = states.get(self.settings.requested_spec(self.loaded), "ON")
        return (
            f"{state} FROM THE NEXT ANSWER"
            if state != states.get(last.spec, "ON")
            else ""
        )

    @property
    def is_paused(self) -> bool:
        """Whether `auto` drafted in few rounds or none when the last answer ended."""
        return self.stats.plan is not None and self.stats.plan.state in (
            "paused",
            "probing",
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether the last answer has no end: the engine or the program was killed."""
        turns = self.conversation.turns
        return not self.is_answering and bool(turns) and turns[-1].finish_reason is None

    @property
    def last_answer_text(self) -> str:
        """The last visible answer of the path, without thinking; empty if there is
        none.
        """
        turns, markers = reversed(self.conversation.turns), self.thinking_markers
        return next(filter(None, (turn.visible_answer(markers) for turn in turns)), "")

    @property
    def completes_text(self) -> bool:
        """Whether the loaded model has no chat template: its answers continue the
        questions.
        """
        return self.loaded is not None and not self.loaded.has_chat_template

    @property
    def tokens_left(self) -> int | None:
        """Free tokens of the context; None until the model is loaded."""
        return self.loaded.n_ctx - self.stats.context_tokens if self.loaded else None

    def estimate_tokens(self, text: str) -> int:
        """The tokens of a message with the pending files, from the bytes per token of
        the chat.
        """
        answers = [
            turn
            for turn in self.conversation.turns[-1:]
            if len(turn.tokens) >= _MIN_SAMPLE
        ]
        n_bytes = sum(len(turn.answer.encode("utf-8", "replace")) for turn in answers)
        bytes_per_token = (
            n_bytes / len(answers[0].tokens) if n_bytes else _BYTES_PER_TOKEN
        )
        message = format_question(Turn(text, attachments=self.pending_attachments))
        return round(len(message.encode("utf-8", "replace")) / bytes_per_token + 0.49)

    @property
    def n_omitted_turns(self) -> int:
        dropped = self.conversation.dropped
        return dropped.turns if dropped.is_prefix_of(self.conversation.turns) else 0

    # --- the engine
    # -----------------------------------------------------------------------

    def attach_engine(
        self, engine: Engine, *, raw: bool = False, template: str | None = None
    ) -> None:
        self.loaded = LoadedModel.from_ready(
            engine.ready,
            self.pair.spec,
            self.pair.spec_reason,
            raw=raw,
            template=template,
        )
        copy = inventory.converted_folder() / engine.ready.model
        self._copy_name = copy.stem if copy.is_file() else ""
        # of earlier answers
        markers = self.loaded.thinking_markers or self.thinking_markers
        self.recorder.pair = replace(
            self.recorder.pair, name=self.model_name, thinking=markers
        )
        summary = [n.message for n in engine.ready.notices if n.code == SETTINGS_NOTICE]
        self.settings_summary = sanitize("\n".join(summary))
        self.update_costs(engine)

    def change_pair(self, pair: ResolvedPair) -> None:
        """Answer with another pair from the next answer on; it must be loaded first.

        A draft source that it lacks becomes `auto`.
        """
        self.require_idle()
        self.previous_pair, self.pair = self.pair, pair
        self.change_settings(spec=launch.preferred_drafter(pair, self.settings.spec))
        model, draft = pair.portable_refs
        self.recorder.pair = ChatPair(
            model, draft, self.model_name, self.thinking_markers
        )
        self.loaded, self._last_request = None, None
        self.stats = SpeculationStats(
            answer=self._replay_last_answer(with_rounds=False)
        )
        self.save_metadata()

    def update_costs(self, engine: Engine) -> None:
        """Take over what the engine has measured of the pair since."""
        self.stats.measured = engine.measured or self.stats.measured

    # --- turns
    # ----------------------------------------------------------------------------

    def can_ask(self, question: str) -> bool:
        """Whether there is something to send.

        A text-completion model can just continue.
        """
        can_continue = self.completes_text and self.conversation.turns
        return bool(question.strip() or self.pending_attachments or can_continue)

    def ask(self, question: str) -> None:
        """Start a turn with the pending files.

        Raises InUseError and changes nothing.
        """
        self._start_turn(
            lambda: self.conversation.ask(question, self.pending_attachments)
        )
        self.pending_attachments, self._typed_question = (), question

    def regenerate(self) -> None:
        """Start another answer to the last question.

        An answer that this model was writing when it was interrupted begins again with
        its seed.
        """
        self.require_turns()
        again = self.is_interrupted and self.conversation.turns[-1].model in (
            "",
            self.model_name,
        )
        self._start_turn(
            self.conversation.restart_answer if again else self.conversation.retry
        )

    def edit_last(self, question: str) -> None:
        """Start a turn in place of the last one, with the same files."""
        self.require_turns()
        last = self.conversation.turns[-1].id
        self._start_turn(lambda: self.conversation.edit_turn(last, question))
        self._typed_question = question

    def _start_turn(self, start: Callable[[], Turn]) -> None:
        """Save the question before it is shown as sent."""
        self.require_idle()
        before = self.conversation.take_snapshot()
        self.recorder.settings = self.settings
        try:
            start()
            answer = self.recorder.record_question(self.thinking_markers)
        except LocalspecError:
            self.conversation.restore(before)
            raise
        self._before_turn = before, self.pending_attachments
        self._typed_question, self.withdrawn_question = "", None
        self._stop_requested, self.is_answering = False, True
        self.stats.start_answer(answer)

    def return_to(self, turn_id: int) -> str:
        """Go back to before a turn, and return its question for editing.

        Its files become pending again; it and the later turns stay as a branch.
        """
        self.require_idle()
        turn = self.conversation.undo_to(turn_id)
        self.pending_attachments = turn.attachments
        self.branch_changed()
        return turn.question

    def undo(self) -> Turn:
        self.require_idle()
        self.require_turns()
        turn = self.conversation.undo()
        self.branch_changed()
        return turn

    def switch_branch(self, turn_id: int) -> None:
        self.require_idle()
        self.conversation.switch_branch(turn_id)
        self.branch_changed()

    def branch_changed(self) -> None:
        """To call after the path through the conversation was changed: its figures are
        shown.
        """
        self.stats.show_answer(self._replay_last_answer())
        self.save_metadata()

    def show_turn(self, turn_id: int) -> None:
        """Select a path that has the turn, unless the selected one has it."""
        if turn_id not in [turn.id for turn in self.conversation.turns]:
            self.switch_branch(turn_id)

    def require_turns(self) -> None:
        """Raises UsageError if the chat is empty."""
        if not self.conversation.turns:
            raise UsageError("The chat is empty.", "Type a message.")

    def require_idle(self) -> None:
        """Raises UsageError while an answer is generated."""
        if self.is_answering:
            raise UsageError("An answer is being generated.", "Stop it first.")

    # --- answers
    # --------------------------------------------------------------------------

    def stream_answer(
        self,
        engine: Engine,
        choose_policy: OverflowChooser = lambda _: "stop",
        *,
        probabilities: bool = False,
    ) -> Iterator[AnswerDelta]:
        """Generate the answer of the turn that was started.

        Raises what the engine raises. If nothing was written before, for example
        because the prompt is too long, the turn is withdrawn: see `withdrawn_question`.
        """
        assert self.loaded is not None
        answer, self._engine = self.answer, engine
        generator = AnswerGenerator(
            engine,
            self.conversation,
            RequestOptions(self.settings, self.loaded, probabilities),
            choose_policy,
            lambda: self._stop_requested,
            self.stats,
        )
        try:
            for delta in generator.stream():
                self._last_request = generator.request
                self.recorder.record_progress()
                if self._is_new(delta.event):
                    yield delta
        except LocalspecError:
            if answer.engine_exit is None:
                if answer.rounds:
                    yield self.stats.add(GenerationFinished("error"))
                else:
                    self._withdraw_turn(answer.turn)
            raise
        finally:
            self._engine = None
            self.finish_answer()

    def _is_new(self, event: Event) -> bool:
        """False for what the template does to every prompt of this chat, once that is
        shown.
        """
        if not isinstance(event, Notice) or event.code != "template-roles":
            return True
        is_new = event.message not in self._shown_template_notices
        self._shown_template_notices.add(event.message)
        return is_new

    def stop(self) -> None:
        self._stop_requested = True
        if self._engine is not None:
            self._engine.stop()

    def finish_answer(self) -> None:
        """Save the rest of the answer; may be called again."""
        self.recorder.finish_answer()
        self.is_answering = False

    def _withdraw_turn(self, turn: Turn) -> None:
        before, self.pending_attachments = self._before_turn
        self.conversation.restore(before)
        self.recorder.discard_turn(turn)
        self.stats.show_answer(self._replay_last_answer())
        self.withdrawn_question = self._typed_question

    def build_inspect_request(self) -> InspectCommand | None:
        """The request for the last answer's probabilities; None if its tokens have
        them.
        """
        request, turns = self._last_request, self.conversation.turns
        ids = turns[-1].tokens if turns else ()
        if request is None or request.probabilities or not ids:
            return None
        prompt = request.text, request.messages, request.template, request.think
        return InspectCommand(
            *prompt, request.prior_messages, request.tools, request.effort, ids
        )

    # --- settings, new chats and files
    # ----------------------------------------------------

    def with_setting(self, name: str, value: str) -> ChatSettings:
        """The settings with one changed.

        Raises UsageError, also if the pair lacks it.
        """
        settings = self.settings.with_value(name, value)
        if self.loaded is not None:
            self.loaded.check(name, settings)
        return settings

    def apply_preset(self, preset: Preset) -> None:
        """Raises UsageError, and then changes nothing."""
        settings = preset.apply(self.settings)
        if self.loaded is not None:
            self.loaded.check("spec", settings)
        if preset.system is not None:
            self.conversation.system = preset.system
        self.settings = settings

    def change_settings(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)

    def save_metadata(self) -> None:
        self.recorder.settings = self.settings
        self.recorder.save_metadata()

    def take_notices(self) -> list[Notice]:
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def clear(self) -> None:
        self._start_chat(Conversation(self.conversation.seed, self.conversation.system))

    def start_new_chat(self, *, private: bool = False) -> None:
        """Start a chat with default settings and a new seed.

        `private`: it is not saved.
        """
        self.settings = self._initial_settings
        seed = random.getrandbits(31)
        self._start_chat(Conversation(seed, self._initial_system), private)

    def _start_chat(self, conversation: Conversation, private: bool = False) -> None:
        self.require_idle()
        self.recorder.settings, self.conversation = self.settings, conversation
        private = private or not self.saves_new_chats
        self.recorder = self.recorder.start_new_chat(conversation, private=private)
        self.pending_attachments = ()
        self.stats = self.stats.for_new_chat()

    def attach_file(self, path_text: str) -> tuple[Attachment, str]:
        """Add a text file to the next question.

        Raises LocalspecError if it cannot be read.
        """
        name, path = (
            sanitize(path_text, multiline=False),
            Path(os.path.expanduser(path_text)),
        )
        try:
            if os.path.exists(path) and not os.path.isfile(path):
                raise UsageError(
                    f"{name} is not a file.", "Give the path of a text file."
                )
            with path.open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"There is no file {name}.", "Type: /read FILE"
            ) from error
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{name} cannot be read: {error}.", "Type: /read FILE"
            ) from error
        hint = "Give the path of a text file of up to 4 MB."
        if len(data) > _MAX_FILE_BYTES:
            raise UsageError(f"{name} is too large.", hint)
        try:
            text, note = decode_text(data)
        except ValueError as error:
            raise UsageError(f"{name} is not a text file.", hint) from error
        text = text.replace("\r\n", "\n").rstrip("\n")
        attachment = Attachment(sanitize(path.name, multiline=False), text)
        self.pending_attachments = (*self.pending_attachments, attachment)
        return attachment, note

    def export(self, path_text: str) -> Path:
        """Write the chat to a file; its suffix selects the format. Raises
        LocalspecError.

        A file is overwritten only if this session has written it.
        """
        self.require_turns()
        path = Path(os.path.expanduser(path_text)).absolute()
        chat = export.snapshot_chat(
            self.conversation, self.recorder.pair, self.settings
        )
        text = export.render(chat, path.suffix)
        export.save_file(path, text, overwrite=path in self._exported_paths)
        self._exported_paths.add(path)
        return path

    def close(self) -> None:
        self.recorder.close()
