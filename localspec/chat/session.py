"""A chat session: a conversation, its settings and history, and the answers to it.

It has no terminal and starts no thread: a front end starts a turn, iterates
`stream_answer` with a loaded engine and shows the deltas. Another thread may meanwhile
read, and call `stop`.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePath

from msgspec import Struct
from msgspec.structs import replace

from localspec import config, launch, paths
from localspec.chat import export
from localspec.chat.answer import AnswerDelta, GeneratedAnswer, replay_turn
from localspec.chat.context_window import (
    AnswerGenerator,
    OverflowChooser,
    RequestOptions,
)
from localspec.chat.conversation import (
    Attachment,
    CallResult,
    Conversation,
    ConversationSnapshot,
    PictureAttachment,
    Turn,
    format_question,
)
from localspec.chat.examples import CODE_EXAMPLE, EXAMPLES
from localspec.chat.history import ChatHistory, ChatPair, SavedChat, name_answers
from localspec.chat.pictures import (
    ChatPictures,
    PictureCost,
    PictureReader,
    no_pictures,
)
from localspec.chat.presets import Preset
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.chat.speculation_stats import SpeculationStats
from localspec.chat.titles import make_title
from localspec.chat.tool_loop import (
    CallHost,
    CallProgress,
    CallRunner,
    ToolFrontEnd,
)
from localspec.chat.tool_results import fit_results
from localspec.errors import (
    LocalspecError,
    PictureError,
    PromptTooLongError,
    UsageError,
)
from localspec.fit.advisor import SettingsRequest
from localspec.launch import (
    SETTINGS_NOTICE,
    Engine,
    ResolvedPair,
    recent_pairs,
    sight,
)
from localspec.models.local_files import inventory
from localspec.models.model_names import PairNames
from localspec.models.pictures import MAX_REQUEST_PICTURES, accept_picture
from localspec.protocol.events import Event, GenerationFinished, Notice, Round
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    CountResult,
    GenerateCommand,
    InspectCommand,
    PictureRef,
    ToolCall,
)
from localspec.sanitize import sanitize
from localspec.tools.approval import Approvals
from localspec.tools.tool_types import ResultPicture
from localspec.tools.toolbox import Toolbox
from localspec.units import count_tokens

_CODE_MODEL = re.compile(r"code|codestral|^demo-", re.IGNORECASE)
_MAX_TITLE = 500  # Characters that are shown of a title.
_MIN_SAMPLE = 32  # Tokens of an answer from which bytes per token are measured.
BYTES_PER_TOKEN = 4.0  # As in usual vocabularies, until it is measured.
_FEWER_TOOLS = "Turn some off (/tools), or load the model with a larger context."
_SENSE_HINT = "Answer with a model that does: /model"


class _BeforeTurn(Struct, frozen=True):
    """What a turn that is refused gives back."""

    conversation: ConversationSnapshot
    pending_attachments: tuple[Attachment, ...]
    pending_pictures: tuple[PictureAttachment, ...]
    typed_question: str  # Empty if the turn was not typed, such as a regeneration.


class _Answering(Struct, frozen=True):
    """What the turns of one question have in common."""

    engine: Engine
    choose_policy: OverflowChooser
    probabilities: bool = False


class ChatSession:
    """One conversation; the engine that answers is attached after each load."""

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
        """`seed`, `settings` and `system` are those of a new chat.

        Without `seed`, nobody asked for one, and the chat has a random one.
        """
        # The pair, and the model that is loaded for it.
        self.pair = pair
        self.previous_pair: ResolvedPair | None = None  # Before `change_pair`.
        self.loaded: LoadedModel | None = None  # None until the first load.
        self.settings_summary = ""  # What the pair was loaded with, and the reasons.
        self._copy_name = ""  # Of a converted copy that is loaded for the target.
        self._is_packaged = inventory.find_packaged(pair.target) is not None
        self._name_pair()
        # The conversation and its settings.
        self._initial_system = system
        self._initial_settings = settings or ChatSettings.from_catalog(
            pair.suggested_settings
        )
        self.settings = self._initial_settings
        if seed is None:
            seed = _random_seed()
        else:
            self._initial_settings = replace(self._initial_settings, seed=seed)
            self.settings = self._initial_settings
        self.conversation = Conversation(seed, system)
        if saved_chat is not None:
            self.settings = saved_chat.settings
            self.conversation = saved_chat.conversation
        # What is typed.
        self.pending_attachments: tuple[Attachment, ...] = ()
        """Files to send with the next question."""
        self.pending_pictures: tuple[PictureAttachment, ...] = ()
        """Pictures to send with the next question."""
        self.picture_costs: dict[str, PictureCost] = {}
        """What pictures cost the loaded model, by hash, as far as it is known."""
        self.pictures = ChatPictures(_find_reader(history, saved_chat))
        # What `estimate_tokens` has measured, at each key that is typed only once.
        self._measured_files: tuple[Attachment, ...] = ()
        self._n_file_bytes = 0
        self._measured_turn: Turn | None = None
        self._measured_bytes_per_token = BYTES_PER_TOKEN
        self.draft = ""  # Typed and not sent when the chat was left.
        self.typed_texts = [
            turn.question for turn in self.conversation.turns if turn.question
        ]
        """Messages to recall, sent or not, the latest last."""
        self._n_examples = 0  # That were suggested.
        # Saving.
        self._notices: deque[Notice] = deque()
        model, draft = pair.portable_refs
        saved_pair = ChatPair(model, draft, self.recorded_name)
        if saved_chat is not None:
            thinking = saved_chat.list_entry.pair.thinking
            saved_pair = replace(saved_pair, thinking=thinking)
        self.recorder = ChatRecorder(
            self.conversation,
            history,
            saved_pair,
            saved_chat=saved_chat,
            read_picture=self.pictures.read,
            notify=self._notices.append,
        )
        self.history_for_new_chats = history
        """Where the next chat is saved; None: nowhere. A private chat is not saved at
        all, and the chat after it is again."""
        self._exported_paths: set[Path] = set()
        # Tools.
        self.toolbox: Toolbox | None = None
        """The tools of this chat. Who sets it closes it."""
        self.tool_costs: dict[str, int] = {}
        """What tools take of the loaded model's prompt, as far as it is known.

        The key is what `GenerateCommand.tools` has.
        """
        self._next_tools = ""
        """What the next answer is offered, as of the last `find_uncounted_tools`."""
        self._answered_tools: str | None = None
        """What the last answer was offered; None if that was in another session."""
        self.approvals = Approvals()
        # The answer.
        self.stats = SpeculationStats(answer=self._replay_last_answer())
        self.last_drafter = "auto"  # Before speculation was turned off.
        self.is_answering = False
        self.withdrawn_question: str | None = None
        """The question of the last turn if that was withdrawn; empty: it was not typed."""
        self._before_turn: _BeforeTurn | None = None
        self._stop = threading.Event()
        """Set while an answer, or a call of a tool, is to end."""
        self._engine: Engine | None = None  # The one that answers now.
        self._last_request: GenerateCommand | None = None
        self._last_answered = 0
        """The id of the turn that the last request asked."""
        self._shown_template_notices: set[str] = set()
        self._shown_picture_notices: set[str] = set()

    def _replay_last_answer(self, *, with_rounds: bool = True) -> GeneratedAnswer:
        """For the statistics of a chat that is opened again, or by another pair."""
        turns = self.conversation.turns
        last = turns[-1] if turns else Turn("")
        if not with_rounds:
            events = [each for each in last.events if not isinstance(each, Round)]
            last = replace(last, events=tuple(events))
        answer, _ = replay_turn(last, self.thinking_markers)
        if with_rounds:
            answer.continue_from(self._replay_earlier_steps())
        return answer

    def _replay_earlier_steps(self) -> list[GeneratedAnswer]:
        """The steps of the last question before its last one."""
        if not self.conversation.turns:
            return []
        *earlier, _ = self.conversation.list_steps(self.conversation.turns[-1].id)
        return [replay_turn(turn, self.thinking_markers)[0] for turn in earlier]

    # --- reading
    # --------------------------------------------------------------------------

    def _name_pair(self) -> None:
        """Name the pair, told apart from the pair before and from recent ones."""
        pairs = recent_pairs.load()
        if self.previous_pair is not None:
            pairs.append(self.previous_pair)
        others: list[Path] = []
        for pair in pairs:
            others += [file for file in pair.files if file is not None]
        self._names = self.pair.names(others)
        self._file_name = self.pair.recorded_name(others)

    @property
    def model_name(self) -> str:
        return self._names.target

    @property
    def recorded_name(self) -> str:
        """What a turn keeps of the model that answers it: the name of its file."""
        return self._copy_name or self._file_name

    def name_answers(self) -> dict[str, str]:
        """The shown name of the model that wrote each answer, by `Turn.model`."""
        turns = self.conversation.turns
        return name_answers(self.model_name, self.recorder.pair, turns)

    @property
    def example_beginning(self) -> str:
        """The beginning of a text, for a text-completion model: code or prose."""
        if _CODE_MODEL.search(self.recorded_name):
            return "def fibonacci(n):"
        return "Once upon a time"

    def next_example(self) -> str:
        """The next example message for a chat that is empty; none in others."""
        if self.conversation.turns or self.loaded is None:
            return ""
        if self.completes_text:
            is_code = _CODE_MODEL.search(self.recorded_name)
            return CODE_EXAMPLE.message if is_code else self.example_beginning
        example = EXAMPLES[self._n_examples % len(EXAMPLES)]
        self._n_examples += 1
        return example.message

    @property
    def draft_name(self) -> str:
        """What guesses; empty without a draft. A default draft may be left out."""
        if self.loaded is not None and not self.loaded.draft_kind:
            return ""
        return self._names.draft

    @property
    def pair_name(self) -> str:
        return PairNames(self.model_name, self.draft_name).text

    @property
    def load_key(self) -> tuple[ResolvedPair, int | None, bool]:
        """The pair must be loaded again if one of these changes."""
        return self.pair, self.settings.ctx, self.settings.exact

    @property
    def is_demo(self) -> bool:
        """Whether the bundled model answers, which shows how speculation works."""
        return self.pair.target.is_relative_to(paths.package_data_dir())

    @property
    def is_toy(self) -> bool:
        """Whether the small packaged model answers somebody who has used no other yet."""
        return self._is_packaged and not recent_pairs.has_used_another_model()

    def keep_model_file(self, request: SettingsRequest) -> SettingsRequest:
        """The request, of which the last answer's model file is a part.

        A copy of the model in another type writes other texts, so a conversation that
        the model's own file has begun goes on with that file.
        """
        turns = self.conversation.turns
        own_name = PurePath(self._file_name).name
        is_own = bool(turns) and PurePath(turns[-1].model).name == own_name
        if is_own and launch.has_faster_copy(self.pair.target):
            return replace(request, keeps_file=True)
        return request

    @property
    def title(self) -> str:
        title = self.recorder.title[:_MAX_TITLE] or make_title(self.conversation)
        return sanitize(title, multiline=False)

    @property
    def thinking_markers(self) -> tuple[str, str] | None:
        """The start and end marker of thinking; None if unknown, or there are none."""
        return self.recorder.pair.thinking

    @property
    def answer(self) -> GeneratedAnswer:
        """The answer being generated, or the last one."""
        return self.stats.answer

    @property
    def next_speculation(self) -> str:
        """What to announce if the settings change speculation from the next answer on."""
        last = self._last_request
        if last is None or self.loaded is None or self.stats.plan is None:
            return ""
        state = self._speculation_state(self.settings.requested_spec(self.loaded))
        if state == self._speculation_state(last.spec):
            return ""
        return f"{state} from the next answer on."

    def _speculation_state(self, spec: str) -> str:
        if spec == "off":
            return "Off"
        if spec == "auto" and self.is_paused:
            return "Paused"
        return "On"

    @property
    def steady_drafter(self) -> str:
        """The drafter that drafts in every step where `auto` may pause.

        It is the pair's draft, else prompt lookup; empty if `auto` is such a drafter,
        because the catalogue says so, or while the model is loading.
        """
        if self.loaded is None or self.loaded.spec != "auto":
            return ""
        return "model" if self.loaded.draft_kind else "lookup"

    @property
    def is_paused(self) -> bool:
        """Whether `auto` drafted in few rounds or none when the last answer ended."""
        plan = self.stats.plan
        return plan is not None and plan.state in ("paused", "probing")

    @property
    def is_interrupted(self) -> bool:
        """Whether the last answer has no end: the engine or the program was killed.

        Also if that was while its calls were asked about or ran.
        """
        turns = self.conversation.turns
        if self.is_answering or not turns:
            return False
        return turns[-1].is_unfinished

    @property
    def completes_text(self) -> bool:
        """Whether the loaded model has no chat template, so it continues the question."""
        return self.loaded is not None and not self.loaded.has_chat_template

    @property
    def last_question(self) -> str:
        """The question that is answered last, also if calls of tools followed it.

        Raises UsageError if the chat is empty.
        """
        self.require_turns()
        return self.conversation.questions[-1].question

    @property
    def calls_tools(self) -> bool:
        """Whether the next answer is offered tools."""
        if self.loaded is None or not self.loaded.has_chat_template:
            return False
        return self.toolbox is not None and bool(self.toolbox.definitions())

    @property
    def tokens_left(self) -> int | None:
        """Free tokens of the context; None until the model is loaded."""
        if self.loaded is None:
            return None
        used = self.stats.context_tokens + self._n_new_tool_tokens
        return self.loaded.n_ctx - used

    @property
    def _n_new_tool_tokens(self) -> int:
        """Tokens of tools that the next prompt has and the last one had not.

        With tools of 400 tokens it is 400 in a new chat, 0 after an answer that was
        offered them, and -400 after they are turned off.
        """
        return self._cost_of(self._next_tools) - self._cost_of(self._find_last_tools())

    def _cost_of(self, tools: str) -> int:
        return self.tool_costs.get(tools, 0)

    def _find_last_tools(self) -> str:
        """What the prompt of `stats` has of tools."""
        turns = self.conversation.turns
        if not turns or not self.stats.context_tokens:
            return ""
        if self._answered_tools is not None:
            return self._answered_tools
        # Which ones is not saved: an answer with calls is taken to have had these.
        return self._next_tools if turns[-1].call_format else ""

    def find_uncounted_tools(self) -> str:
        """What the next answer is offered, if it is unknown what that takes.

        Empty if it is known, or nothing is offered.
        """
        self._next_tools = ""
        if self.calls_tools and self.toolbox is not None:
            self._next_tools = self.toolbox.to_json()
        if self._next_tools in self.tool_costs:
            return ""
        return self._next_tools

    def count_tools(self, engine: Engine, tools: str) -> int:
        """The tokens that tools take of a prompt. Raises what the engine raises."""
        assert self.loaded is not None
        template = self.loaded.template_override
        question = ChatMessage("user", "?")
        command = CountCommand(messages=(question,), template=template, tools=tools)
        without = _count_question(engine, template)
        return max(0, engine.count(command).tokens - without.tokens)

    def _describe_too_long(self, engine: Engine, tools: str) -> str:
        """What to do about a prompt that is too long, if it has tools."""
        n_tokens = 0
        with suppress(LocalspecError):
            n_tokens = self.count_tools(engine, tools)
        if not n_tokens:
            return f"The model reads the descriptions of its tools, too. {_FEWER_TOOLS}"
        return f"The tools take {count_tokens(n_tokens)} of these. {_FEWER_TOOLS}"

    def estimate_tokens(self, text: str) -> int:
        """The tokens of a message with the pending files and pictures.

        A token is taken to have as many bytes as those of the last answer, if that has
        enough tokens to tell.
        """
        files = self.pending_attachments
        if files is not self._measured_files:
            self._measured_files = files
            self._n_file_bytes = _count_bytes(
                format_question(Turn("", attachments=files))
            )
        # The typed text is below the files, after a blank line.
        n_bytes = self._n_file_bytes + _count_bytes(text)
        if files and text:
            n_bytes += len("\n\n")
        # Rounded up: one byte is a token, and nothing is none.
        n_tokens = ceil(n_bytes / self._bytes_per_token())
        for picture in self.pending_pictures:
            cost = self.picture_costs.get(picture.sha256)
            if cost is not None:
                n_tokens += cost.n_rows
        return n_tokens

    def estimate_text(self, text: str) -> int:
        """The tokens of a text, as `estimate_tokens` counts them."""
        return ceil(_count_bytes(text) / self._bytes_per_token())

    def _bytes_per_token(self) -> float:
        last = self.conversation.turns[-1] if self.conversation.turns else None
        if last is not self._measured_turn:
            self._measured_turn = last
            self._measured_bytes_per_token = BYTES_PER_TOKEN
            n_bytes = _count_bytes(last.answer) if last is not None else 0
            n_tokens = len(last.tokens) if last is not None else 0
            if n_tokens >= _MIN_SAMPLE and n_bytes:
                self._measured_bytes_per_token = n_bytes / n_tokens
        return self._measured_bytes_per_token

    @property
    def n_omitted_turns(self) -> int:
        """The oldest turns of the path that are not sent to the model.

        A question counts as one, however many tool steps it has.
        """
        conversation = self.conversation
        dropped = conversation.turns[: conversation.active_dropped.turns]
        return len([turn for turn in dropped if not turn.is_tool_step])

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
        self.picture_costs = {}
        self.tool_costs = {}
        self._copy_name = ""
        if engine.ready.model != self.pair.target.name:
            copy = inventory.converted_folder() / engine.ready.model
            if copy.is_file():
                self._copy_name = sanitize(copy.stem, multiline=False)
        # Without markers, those of the model before stay: its answers may have some.
        markers = self.loaded.thinking_markers or self.thinking_markers
        self.recorder.pair = replace(
            self.recorder.pair, name=self.recorded_name, thinking=markers
        )
        try:
            self.loaded.check_thinking(self.settings)
        except UsageError as error:
            # Another model, or an earlier chat, had it.
            self._notices.append(Notice("warning", "no-thinking", error.message))
        summary = [n.message for n in engine.ready.notices if n.code == SETTINGS_NOTICE]
        self.settings_summary = sanitize("\n".join(summary))
        self.update_costs(engine)

    def change_pair(self, pair: ResolvedPair) -> None:
        """Answer with another pair from the next answer on; it must be loaded first.

        A draft source that it lacks becomes `auto`.
        """
        self.require_idle()
        self.previous_pair = self.pair
        self.pair = pair
        self._copy_name = ""
        self._is_packaged = inventory.find_packaged(pair.target) is not None
        self._name_pair()
        self.change_settings(spec=launch.preferred_drafter(pair, self.settings.spec))
        model, draft = pair.portable_refs
        self.recorder.pair = ChatPair(
            model, draft, self.recorded_name, self.thinking_markers
        )
        self.loaded = None
        self._last_request = None
        last_answer = self._replay_last_answer(with_rounds=False)
        self.stats = SpeculationStats(answer=last_answer)
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
        return bool(question.strip() or self.has_pending_files or can_continue)

    @property
    def has_pending_files(self) -> bool:
        """Whether files or pictures go with the next question."""
        return bool(self.pending_attachments or self.pending_pictures)

    def ask(self, question: str) -> None:
        """Start a turn with the pending files and pictures.

        Raises InUseError, or UsageError if the model does not see or hear, and then
        changes nothing.
        """
        for picture in self.pending_pictures:
            if picture.is_audio:
                self.require_hearing()
            else:
                self.require_sight()

        def start() -> Turn:
            return self.conversation.ask(
                question, self.pending_attachments, self.pending_pictures
            )

        self._start_turn(start, question)
        self.pending_attachments = ()
        self.pending_pictures = ()

    def regenerate(self) -> None:
        """Start another answer to the last question.

        An answer that this model was writing when it was interrupted begins again with
        its seed if that gives the same text. Otherwise what was written stays as a
        branch.
        """
        self.require_turns()
        last_model = self.conversation.turns[-1].model
        is_same_model = last_model in ("", self.recorded_name)
        if self.is_interrupted and is_same_model and self.settings.repeats_texts:
            self._start_turn(self.conversation.restart_answer)
        else:
            self._start_turn(self.conversation.retry)

    def edit_last(self, question: str) -> None:
        """Start a turn in place of the last question, with the same files."""
        self.require_turns()
        last = self.conversation.turns[-1].id
        self._start_turn(lambda: self.conversation.edit_turn(last, question), question)

    def _start_turn(self, start: Callable[[], Turn], typed_question: str = "") -> None:
        """Save the question before it is shown as sent."""
        self.require_idle()
        conversation_before = self.conversation.take_snapshot()
        self.recorder.settings = self.settings
        try:
            start()
            answer = self.recorder.record_question(self.thinking_markers)
        except LocalspecError:
            self.conversation.restore(conversation_before)
            raise
        self._before_turn = _BeforeTurn(
            conversation_before,
            self.pending_attachments,
            self.pending_pictures,
            typed_question,
        )
        self.withdrawn_question = None
        self._stop.clear()
        self.is_answering = True
        answer.continue_from(self._replay_earlier_steps())  # Of a step that is retried.
        self.stats.start_answer(answer)

    def return_to(self, turn_id: int) -> str:
        """Go back to before a turn, and return its question for editing.

        Its files become pending again; it and the later turns stay as a branch.
        """
        self.require_idle()
        turn = self.conversation.undo_to(turn_id)
        self.pending_attachments = turn.attachments
        self.pending_pictures = turn.pictures
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
        """Show the figures of another path through the conversation, and save it."""
        self.stats.show_answer(self._replay_last_answer())
        self._answered_tools = None
        self.save_metadata()

    def show_turn(self, turn_id: int) -> None:
        """Select a path that has the turn, unless the selected one has it."""
        if turn_id not in [turn.id for turn in self.conversation.turns]:
            self.switch_branch(turn_id)

    def require_turns(self) -> None:
        """Raises UsageError if the chat is empty."""
        self.conversation.require_turns()

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
        tools: ToolFrontEnd | None = None,
    ) -> Iterator[AnswerDelta]:
        """Generate the answer of the turn that was started.

        With `tools` the model may call those of `toolbox`. Then one question can take
        several turns: each answer with calls is followed by a turn of their results.
        Without it nothing is offered.

        Raises what the engine raises. If nothing was written before, for example
        because the prompt is too long, the turn is withdrawn: see `withdrawn_question`.
        """
        self.update_costs(engine)  # They may have been measured since.
        answering = _Answering(engine, choose_policy, probabilities=probabilities)
        try:
            if tools is None or not self.calls_tools:
                yield from self._stream_turn(answering)
            else:
                yield from self._stream_with_tools(answering, tools)
        finally:
            self.finish_answer()

    def _stream_with_tools(
        self, answering: _Answering, front_end: ToolFrontEnd
    ) -> Iterator[AnswerDelta]:
        """Answers and calls in turn, until an answer calls nothing.

        When the most calls are made, the model is offered no tools, so that it answers.
        """
        n_left = _read_max_calls()
        while True:
            yield from self._stream_turn(answering, front_end, offers=n_left > 0)
            calls = self.conversation.turns[-1].calls
            if not calls:
                return
            if n_left <= 0:
                message = "The model asked for more calls than one answer may have."
                self._notices.append(Notice("warning", "too-many-calls", message))
                return
            results = self._run_calls(calls, front_end, n_left=n_left)
            n_left -= len(calls)
            self._begin_tool_step(answering.engine, results)
            front_end.begin_turn(self.conversation.turns[-1])

    def _stream_turn(
        self,
        answering: _Answering,
        front_end: ToolFrontEnd | None = None,
        *,
        offers: bool = False,
    ) -> Iterator[AnswerDelta]:
        """The answer of the last turn. `offers`: whether tools are offered."""
        assert self.loaded is not None
        answer = self.answer
        offered = ""
        progress: CallProgress | None = None
        if front_end is not None and self.toolbox is not None:
            progress = CallProgress(self.toolbox, front_end)
            # Also an answer that is offered no more tools may have a call.
            answer.offer_tools(self.loaded.tool_format, self.toolbox.schemas())
            if offers:
                offered = self.toolbox.to_json()
        options = RequestOptions(
            self.settings,
            self.loaded,
            probabilities=answering.probabilities,
            tools=offered,
        )
        # While a tool is asked about or runs, a stop is none of the engine's.
        self._engine = answering.engine
        try:
            self._prepare_prompt()
            generator = AnswerGenerator(
                answering.engine,
                self.conversation,
                options,
                choose_policy=answering.choose_policy,
                is_stopped=self._stop.is_set,
                stats=self.stats,
            )
            for delta in generator.stream():
                self._last_request = generator.request
                self._last_answered = answer.turn.id
                self._answered_tools = offered
                self.recorder.record_progress()
                if self._is_new(delta.event):
                    yield delta
                if progress is not None:
                    progress.show(answer)
        except LocalspecError as error:
            if offered and isinstance(error, PromptTooLongError):
                error.hint = self._describe_too_long(answering.engine, offered)
            if answer.engine_exit is None:
                if answer.rounds or self.conversation.turns[-1].is_tool_step:
                    yield self.stats.add(GenerationFinished("error"))
                else:
                    self._withdraw_turn(answer.turn)
            raise
        finally:
            self._engine = None

    def _run_calls(
        self, calls: Sequence[ToolCall], front_end: ToolFrontEnd, *, n_left: int
    ) -> tuple[CallResult, ...]:
        """The results of an answer's calls, of which at most `n_left` run."""
        assert self.toolbox is not None
        runner = CallRunner(
            toolbox=self.toolbox,
            approvals=self.approvals,
            front_end=front_end,
            stop=self._stop,
            host=CallHost(self._keep_picture, self._notices.append),
        )
        return runner.run(calls, n_most=n_left)

    def _begin_tool_step(self, engine: Engine, results: tuple[CallResult, ...]) -> None:
        """Save the results, cut to what fits, before the model reads them."""
        assert self.loaded is not None
        assert self.toolbox is not None
        options = RequestOptions(
            self.settings, self.loaded, tools=self.toolbox.to_json()
        )
        with suppress(LocalspecError):  # An engine that has exited reports it itself.
            results = fit_results(engine, self.conversation, options, results)
        self.conversation.add_results(results)
        before = self.answer
        answer = self.recorder.record_question(self.thinking_markers)
        answer.continue_from((*before.earlier_steps, before))
        self.stats.start_answer(answer)

    def _keep_picture(
        self, picture: ResultPicture, name: str
    ) -> PictureAttachment | None:
        """A picture of a result, as one of the chat; None if it cannot be used."""
        try:
            return self.pictures.add(accept_picture(picture.data, name))
        except PictureError as error:
            message = f"A picture of {name} is left out: {error.message}"
            shown = sanitize(message, multiline=False)
            self._notices.append(Notice("warning", "picture-left-out", shown))
            return None

    def _is_new(self, event: Event) -> bool:
        """Whether the event is not a notice on the template that was shown before.

        Such a notice comes with every prompt of the chat.
        """
        if not isinstance(event, Notice) or event.code != "template-roles":
            return True
        is_new = event.message not in self._shown_template_notices
        self._shown_template_notices.add(event.message)
        return is_new

    def stop(self) -> None:
        """End the answer, or the call of a tool that is asked about or runs."""
        self._stop.set()
        if self._engine is not None:
            self._engine.stop()

    def finish_answer(self) -> None:
        """Save the rest of the answer; may be called again."""
        self.recorder.finish_answer()
        self.is_answering = False

    def _prepare_prompt(self) -> None:
        """Give the engine the pictures of the path; a line says what it does not see."""
        conversation = self.conversation
        conversation.thinking_markers = self.thinking_markers
        conversation.picture_paths = {}
        pictures: list[PictureAttachment] = []
        for turn in conversation.turns:
            pictures += turn.all_pictures
        taken = [each for each in pictures if self._takes(each)]
        if taken:
            turn = Turn("", pictures=tuple(taken))
            conversation.picture_paths = self.pictures.write_files((turn,))
        for picture in pictures:
            if picture.sha256 not in conversation.picture_paths:
                self._tell_unseen(picture)

    def _takes(self, picture: PictureAttachment) -> bool:
        """Whether the loaded model sees a picture, or hears audio."""
        if self.loaded is None:
            return False
        return self.loaded.hears if picture.is_audio else self.loaded.sees

    def _tell_unseen(self, picture: PictureAttachment) -> None:
        why = "it is no longer saved"
        if self.loaded is not None and not self._takes(picture):
            sense = "hear" if picture.is_audio else "see pictures"
            why = f"{self.model_name} does not {sense}"
        message = f"{picture.name} is left out: {why}."
        if message not in self._shown_picture_notices:
            self._shown_picture_notices.add(message)
            self._notices.append(Notice("warning", "picture-left-out", message))

    def _withdraw_turn(self, turn: Turn) -> None:
        before = self._before_turn
        assert before is not None
        self.pending_attachments = before.pending_attachments
        self.pending_pictures = before.pending_pictures
        self.conversation.restore(before.conversation)
        self.recorder.discard_turn(turn)
        self.stats.show_answer(self._replay_last_answer())
        self.withdrawn_question = before.typed_question

    def build_inspect_request(self) -> InspectCommand | None:
        """The request for the last answer's probabilities.

        None if it has them, if it has no tokens, or if another answer was the last one
        that this session asked for: `/undo` and branches lead to older ones.
        """
        request = self._last_request
        turns = self.conversation.turns
        if request is None or request.probabilities:
            return None
        if not turns or not turns[-1].tokens or turns[-1].id != self._last_answered:
            return None
        return InspectCommand(
            text=request.text,
            messages=request.messages,
            template=request.template,
            think=request.think,
            prior_messages=request.prior_messages,
            tools=request.tools,
            effort=request.effort,
            tokens=turns[-1].tokens,
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
            for name in preset.setting_names:
                self.loaded.check(name, settings)
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
        """Start over with the same seed, system prompt and settings.

        A private chat stays private.
        """
        conversation = Conversation(self.conversation.seed, self.conversation.system)
        self._start_chat(conversation, private=not self.recorder.is_saving)

    def start_new_chat(self, *, private: bool = False) -> None:
        """Start a chat with default settings, tools and a new seed.

        `private`: this chat is not saved; the next one is.
        """
        self.require_idle()
        self.settings = self._initial_settings
        if self.toolbox is not None:
            self.toolbox.begin_chat()
        conversation = Conversation(_random_seed(), self._initial_system)
        self._start_chat(conversation, private=private)

    def _start_chat(self, conversation: Conversation, *, private: bool) -> None:
        self.require_idle()
        self.recorder.close()
        self.approvals.forget_chat()
        self.conversation = conversation
        history = None if private else self.history_for_new_chats
        self.pictures = ChatPictures()
        self.recorder = ChatRecorder(
            conversation,
            history,
            self.recorder.pair,
            read_picture=self.pictures.read,
            notify=self._notices.append,
        )
        self.recorder.settings = self.settings
        self.pending_attachments = ()
        self.pending_pictures = ()
        self._answered_tools = None
        self.stats = self.stats.for_new_chat()

    def add_attachment(self, attachment: Attachment) -> None:
        """Add a file to the next question."""
        self.pending_attachments = (*self.pending_attachments, attachment)

    def add_picture(self, picture: PictureAttachment) -> None:
        """Add one of `pictures` to the next question; once, if it is there twice.

        Raises UsageError if there are too many.
        """
        others = [
            each for each in self.pending_pictures if each.sha256 != picture.sha256
        ]
        if len(others) >= MAX_REQUEST_PICTURES:
            raise UsageError(
                f"A message has at most {MAX_REQUEST_PICTURES} pictures and audio files.",
                "Send these first.",
            )
        self.pending_pictures = (*others, picture)

    def remove_pictures(self) -> None:
        """Send the next question without pictures."""
        left = [each for each in self.pending_pictures if each.is_audio]
        self.pending_pictures = tuple(left)

    def remove_audio(self) -> None:
        """Send the next question without audio."""
        left = [each for each in self.pending_pictures if not each.is_audio]
        self.pending_pictures = tuple(left)

    def count_pictures(
        self, engine: Engine, pictures: Sequence[PictureAttachment]
    ) -> dict[str, PictureCost]:
        """What pictures cost, by hash. Raises what the engine raises."""
        assert self.loaded is not None
        template = self.loaded.template_override
        costs: dict[str, PictureCost] = {}
        without = _count_question(engine, template)
        for picture in pictures:
            turn = Turn("", pictures=(picture,))
            paths_by_hash = self.pictures.write_files((turn,))
            if not paths_by_hash:
                continue
            ref = picture.refer(paths_by_hash[picture.sha256])
            with_picture = _count_question(engine, template, ref)
            costs[picture.sha256] = PictureCost(
                with_picture.tokens - without.tokens, with_picture.picture_seconds
            )
        return costs

    def require_sight(self, *, name_others: bool = False) -> None:
        """Raises UsageError if the loaded model takes no pictures.

        `name_others`: the hint names models that do, which takes a moment to find.
        """
        if self.loaded is None or self.loaded.sees:
            return
        hint = _SENSE_HINT
        if name_others:
            names = ", ".join(sight.find_seeing_models())
            hint = f"These do: {names}. Type: /model NAME"
        raise UsageError(f"{self.model_name} does not see pictures.", hint)

    def require_hearing(self, *, name_others: bool = False) -> None:
        """As `require_sight`, for audio."""
        if self.loaded is None or self.loaded.hears:
            return
        hint = _SENSE_HINT
        if name_others:
            names = ", ".join(sight.find_hearing_models())
            hint = f"These do: {names}. Type: /model NAME"
        raise UsageError(f"{self.model_name} does not hear.", hint)

    def snapshot(self) -> SavedChat:
        """The chat as it is now, for work on another thread."""
        return export.snapshot_chat(
            self.conversation,
            self.recorder.pair,
            self.settings,
            read_picture=self.pictures.read,
        )

    def prepare_export(self, path_text: str) -> Callable[[], Path]:
        """Return the work that writes the chat, as it is now, to a file.

        The suffix of the file selects the format. A file is overwritten only if this
        session has written it. Raises UsageError if the chat is empty; the work returns
        the path of the file, or raises LocalspecError. It may run on another thread.
        """
        self.require_turns()
        path = Path(os.path.expanduser(path_text)).absolute()
        chat = self.snapshot()

        def work() -> Path:
            text = export.render(chat, path.suffix)
            export.save_file(path, text, overwrite=path in self._exported_paths)
            self._exported_paths.add(path)
            return path

        return work

    def close(self) -> None:
        self.recorder.close()


def _find_reader(
    history: ChatHistory | None, saved_chat: SavedChat | None
) -> PictureReader:
    """How the pictures of a saved chat are read: that of the open history, if any."""
    if saved_chat is None:
        return no_pictures
    return saved_chat.read_picture if history is None else history.read_picture


def _read_max_calls() -> int:
    """How many calls one answer may have, by config.toml."""
    return int(config.resolve().get("tools.max_calls"))


def _random_seed() -> int:
    return random.getrandbits(31)


def _count_question(
    engine: Engine, template: str | None, *images: PictureRef
) -> CountResult:
    """What a short question with pictures takes."""
    question = ChatMessage("user", "?", images=images)
    return engine.count(CountCommand(messages=(question,), template=template))


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
