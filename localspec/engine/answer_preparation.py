"""Prepares answers: a request becomes a `PreparedAnswer`, once, and is not read again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from localspec import draft_kinds
from localspec.engine.chat_prompt import Prompt
from localspec.engine.loaded_pair import LoadedPair
from localspec.errors import (
    AudioError,
    GrammarError,
    Hint,
    PictureError,
    PromptTooLongError,
    UsageError,
)
from localspec.models.chat_template import generic_tools
from localspec.models.chat_template.call_layouts import CallLayout
from localspec.protocol.events import Notice
from localspec.protocol.wire import (
    CountCommand,
    GenerateCommand,
    SamplingParams,
    VerifyMode,
)
from localspec.sanitize import sanitize
from localspec.spec.constraints.answer_start import AnswerStart, HeaderTokens
from localspec.spec.constraints.grammars import Grammars
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.constraints.tool_call_text import (
    CallGrammar,
    MarkTokens,
    TextBetweenCalls,
)
from localspec.spec.prepared_answer import (
    DraftRequest,
    PreparedAnswer,
    PromptPart,
    TokenPart,
    join_parts,
)
from localspec.spec.protocols import GrammarState
from localspec.spec.sampling import bind_vocabulary
from localspec.spec.verifiers import make_verifier

_MIN_ANSWER_TOKENS = 512  # A hint names a context with space for so long an answer.
_MAX_SHOWN_TOOLS = 5
_CONTEXT_STEP = 256  # llama.cpp rounds the size of a context up to a multiple of it.


_CallsKey = tuple[str, tuple[str, ...], CallLayout | None]
"""The tools of a request, the names of those that may be called, and the layout."""


class _RequestCalls(Struct, frozen=True):
    """What holds the calls of an answer to the tools of its request."""

    key: _CallsKey
    grammar: CallGrammar | None = None
    loose: tuple[str, ...] = ()
    """Tools whose arguments are not held to their schema."""
    problem: GrammarError | None = None
    """Why there is no grammar."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        if self.problem is not None:
            message = f"Calls of tools are not checked while they are written. {self.problem.message}"
            return (Notice("info", "calls_free", message, str(self.problem.hint)),)
        if not self.loose:
            return ()
        shown = ", ".join(self.loose[:_MAX_SHOWN_TOOLS])
        if len(self.loose) > _MAX_SHOWN_TOOLS:
            shown += ", …"
        message = f"Arguments of {shown} are not held to their JSON Schema, which cannot be used."
        return (Notice("info", "calls_loose", sanitize(message, multiline=False)),)


class AnswerPreparer:
    """Prepares the answers of one loaded pair."""

    def __init__(self, pair: LoadedPair, is_cancelled: Callable[[], bool]) -> None:
        vocabulary = pair.target.vocabulary
        self._pair = pair
        self._prompts = pair.prompt_builder
        self._vocabulary = vocabulary
        self._is_cancelled = is_cancelled
        self._grammars = Grammars(vocabulary)
        self._header_tokens = HeaderTokens(
            vocabulary.n_tokens, vocabulary.piece, vocabulary.token_text
        )
        self._call_marks: dict[tuple[str, ...], MarkTokens] = {}
        """Those of the last request; they take 0.1 s to find."""
        self._last_calls: _RequestCalls | None = None

    def prepare_calls(self) -> Iterator[None]:
        """Prepare the grammars of calls; may be closed at every yield.

        Without the package for grammars, the first request with tools says so.
        """
        with suppress(GrammarError):
            yield from self._grammars.prepare()

    def prepare(self, request: GenerateCommand) -> PreparedAnswer:
        """Prepare a request whose verifier has been chosen: it is not `auto`.

        Raises UsageError, PromptTooLongError, GrammarError or PictureError.
        """
        verify = request.verify
        assert verify != "auto"
        prompt = self._prompts.build_prompt(request)
        parts = self._checked_parts(prompt)
        _check_request(request, self._pair.target.n_vocab)

        resumed_tokens = request.resumed_tokens
        shown_tokens = resumed_tokens
        max_tokens = request.max_tokens
        if request.prefill:
            resumed_tokens = self._prefill_tokens(prompt.prefill, resumed_tokens)
            shown_tokens = ()  # The caller's own text is no part of the answer.
            max_tokens += len(resumed_tokens)

        n_alternatives = None
        if request.probabilities:
            n_alternatives = request.n_alternatives

        calls = self._find_calls(request)
        notices = prompt.notices
        if calls is not None and calls is not self._last_calls:
            notices += calls.notices
            self._last_calls = calls
        constraint = self._make_constraint(
            request, prompt, calls, parts=parts, resumed_tokens=resumed_tokens
        )

        thinking = self._prompts.make_thinking_budget(prompt, request)
        thinking.restore_tokens(resumed_tokens)
        return PreparedAnswer(
            parts=parts,
            sampling=self.bind_sampling(request.sampling),
            max_tokens=max_tokens,
            verifier=make_verifier(
                verify, request.sampling.seed, n_resumed=len(resumed_tokens)
            ),
            is_eog=self._vocabulary.is_eog,
            is_cancelled=self._is_cancelled,
            resumed_tokens=resumed_tokens,
            shown_tokens=shown_tokens,
            stop_strings=(*request.stop, *prompt.stop),
            thinking=thinking,
            constraint=constraint,
            n_alternatives=n_alternatives,
            drafting=self._draft_request(request, verify),
            notices=notices,
        )

    def prompt_tokens(self, command: GenerateCommand | CountCommand) -> list[int]:
        """The tokens of a prompt that leaves space for an answer.

        Raises as `prepare` does.
        """
        return join_parts(self._checked_parts(self._prompts.build_prompt(command)))

    def list_unchecked_tokens(self, command: CountCommand) -> list[int]:
        """The tokens of a prompt, also of one that is empty or too long."""
        return join_parts(self._parts(self._prompts.build_prompt(command)))

    def bind_sampling(self, sampling: SamplingParams) -> SamplingParams:
        return bind_vocabulary(sampling, self._vocabulary.piece)

    def _parts(self, prompt: Prompt) -> tuple[PromptPart, ...]:
        """The parts of a prompt; earlier answers keep the tokens they were generated with.

        Pictures have their ids by their headers; the target reads them later. Raises
        UsageError if the request's own tokens are not of this model, and PictureError.
        """
        if not prompt.tokens:
            picture_ids = self._list_picture_ids(prompt)
            return (TokenPart(self._prompts.tokenize(prompt, picture_ids)),)
        n_tokens = self._vocabulary.n_tokens
        if not all(0 <= token < n_tokens for token in prompt.tokens):
            raise UsageError(
                "The prompt contains tokens that this model does not have."
            )
        return (TokenPart(list(prompt.tokens)),)

    def _list_picture_ids(self, prompt: Prompt) -> list[list[int]]:
        if not prompt.pictures:
            return []
        reader = self._pair.pictures
        if reader is None:
            model = self._pair.target.model.path.name
            hint = Hint("Load it with {image_model=FILE}, its mmproj file.")
            without = f"{model} is loaded without a projector, so it"
            if prompt.pictures[0].kind == "audio":
                raise AudioError(f"{without} hears no audio.", hint)
            raise PictureError(f"{without} sees no pictures.", hint)
        return [reader.list_ids(picture) for picture in prompt.pictures]

    def _checked_parts(self, prompt: Prompt) -> tuple[PromptPart, ...]:
        """The parts of a prompt that leaves space for an answer.

        Raises UsageError if the prompt is empty, PromptTooLongError if it fills the
        context.
        """
        parts = self._parts(prompt)
        n_tokens = len(join_parts(parts))
        target = self._pair.target
        if not n_tokens:
            raise UsageError("The prompt is empty.", "Give a text to answer.")
        if n_tokens >= target.n_ctx:
            raise _too_long_error(n_tokens, target.n_ctx, target.n_ctx_train)
        return parts

    def _prefill_tokens(
        self, text: str, resumed_tokens: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The resumed tokens if they have exactly this text, else the tokenizer's.

        Each has text of its own: a control token among them would be read unseen.
        """
        pieces = list(map(self._vocabulary.text_piece, resumed_tokens))
        if all(pieces) and b"".join(pieces) == text.encode("utf-8", "replace"):
            return resumed_tokens
        return tuple(self._vocabulary.tokenize_continuation(text))

    def _make_constraint(
        self,
        request: GenerateCommand,
        prompt: Prompt,
        calls: _RequestCalls | None,
        *,
        parts: tuple[PromptPart, ...],
        resumed_tokens: tuple[int, ...],
    ) -> OutputConstraint | None:
        start: GrammarState
        if request.grammar or request.json_schema:
            start = self._start_grammar(request)
            parser = self._prompts.make_answer_parser(prompt, request)
            if parser is not None:
                has_tools = bool(request.tools)
                start = AnswerStart(
                    start, parser, self._header_tokens, has_tools=has_tools
                )
        elif calls is None or calls.grammar is None:
            return None
        elif request.must_call:
            start = self._start_with_call(request, prompt)
        else:
            parser = self._prompts.make_parser(prompt, request)
            start = TextBetweenCalls(calls.grammar, parser)
        prompt_ids = join_parts(parts)
        constraint = OutputConstraint(start, len(prompt_ids))
        constraint.commit([*prompt_ids, *resumed_tokens])
        return constraint

    def _start_with_call(
        self, request: GenerateCommand, prompt: Prompt
    ) -> GrammarState:
        """The state of an answer that is a call, behind its thinking if it has begun."""
        layout = self._prompts.call_layout(request)
        assert layout is not None, "calls have a grammar"
        start = self._grammars.start_forced_call(layout, _read_schemas(request))
        parser = self._prompts.make_parser(prompt, request)
        if parser is None or parser.kind != "thinking":
            return start
        return AnswerStart(start, parser, self._header_tokens, has_tools=True)

    def _start_grammar(self, request: GenerateCommand) -> GrammarState:
        try:
            return self._grammars.start(request.grammar, request.json_schema)
        except GrammarError:
            if not request.fallback_schema:
                raise
            return self._grammars.start("", request.fallback_schema)

    def _find_calls(self, request: GenerateCommand) -> _RequestCalls | None:
        """The grammar of the request's tools; that of the last request is kept.

        Raises GrammarError if there is none, and the request needs it: a model that has
        no format of its own makes mistakes without it.
        """
        if not request.tools or request.grammar or request.json_schema:
            return None
        layout = self._prompts.call_layout(request)
        is_needed = request.must_call or self._prompts.writes_tools_as_text(request)
        key = (request.tools, request.callable_tools, layout)
        calls = self._last_calls
        if calls is None or calls.key != key:
            calls = self._make_calls(key, request)
        if calls.problem is not None and is_needed:
            raise calls.problem
        return calls

    def _make_calls(self, key: _CallsKey, request: GenerateCommand) -> _RequestCalls:
        layout = key[-1]
        if layout is None:
            message = "It is not known to the character how this model writes them."
            return _RequestCalls(key, problem=GrammarError(message))
        try:
            grammar, loose = self._make_call_grammar(layout, _read_schemas(request))
        except GrammarError as error:
            return _RequestCalls(key, problem=error)
        return _RequestCalls(key, grammar, loose=loose)

    def _make_call_grammar(
        self, layout: CallLayout, schemas: Mapping[str, Any]
    ) -> tuple[CallGrammar, tuple[str, ...]]:
        """The grammar, and the tools whose schema it does not hold."""
        states = self._grammars.start_calls(layout, schemas)
        vocabulary = self._vocabulary
        tokens = self._call_marks.get(tuple(states.by_mark))
        if tokens is None:
            tokens = MarkTokens(
                states.by_mark,
                vocabulary.n_tokens,
                vocabulary.piece,
                self._grammars.pieces,
            )
            self._call_marks = {tuple(states.by_mark): tokens}
        grammar = CallGrammar(states, tokens, vocabulary, layout.place)
        return grammar, states.loose

    def _draft_request(
        self, request: GenerateCommand, verify: VerifyMode
    ) -> DraftRequest:
        prediction = self._prediction_tokens(request.prediction)
        draft = self._pair.loaded_draft
        draft_prompt = None
        if draft is not None and not draft_kinds.needs_no_draft(request.spec):
            draft_prompt = draft.prompt(request)
        return DraftRequest(
            method=request.spec,
            max_length=request.draft_length,
            overlap=request.overlap,
            verify=verify,
            why=request.why,
            prediction=prediction,
            owner=request.client,
            draft_prompt=draft_prompt,
        )

    def _prediction_tokens(self, text: str) -> tuple[int, ...]:
        """As many tokens as an answer can have: an index of them is kept in memory."""
        if not text:
            return ()
        try:
            tokens = self._vocabulary.tokenize(
                text, add_special=False, parse_special=False
            )
        except PromptTooLongError as error:
            message = f"The prediction cannot be used. {error.message}"
            raise UsageError(message, error.hint) from None
        return tuple(tokens[: self._pair.target.n_ctx])


def _read_schemas(request: GenerateCommand) -> dict[str, Any]:
    """The JSON Schemas of the tools that may be called, by their names."""
    schemas = generic_tools.read_schemas(request.tools)
    if request.callable_tools:
        return {name: schemas[name] for name in request.callable_tools}
    return schemas


def _too_long_error(n_tokens: int, n_ctx: int, trained: int) -> PromptTooLongError:
    steps = math.ceil((n_tokens + _MIN_ANSWER_TOKENS) / _CONTEXT_STEP)
    larger = steps * _CONTEXT_STEP
    hint = f"Shorten it: the model was trained with {trained:,} tokens."
    if not trained or larger <= trained:
        hint = Hint(f"Use {{ctx={larger}}}, or shorten it.")
    message = f"The prompt has {n_tokens:,} tokens; the context holds {n_ctx:,}."
    return PromptTooLongError(message, hint)


def _check_request(request: GenerateCommand, n_vocab: int) -> None:
    _check_sampling(request.sampling, n_vocab)
    if request.max_tokens < 1:
        raise UsageError(
            "Max tokens must be at least 1.", Hint("Use {max_tokens=1} or more.")
        )
    if not all(0 <= token < n_vocab for token in request.resumed_tokens):
        raise UsageError(
            "The begun answer contains tokens that this model does not have."
        )
    if request.grammar and request.json_schema:
        raise UsageError(
            "A grammar and a JSON Schema cannot be used together.", "Give one."
        )


def _check_sampling(sampling: SamplingParams, n_vocab: int) -> None:
    """Raises UsageError. Comparisons are written so that NaN fails them."""
    temperature = sampling.temperature
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"A temperature of {temperature} is not valid.", "Use 0 to 2.")

    is_top_p = 0 < sampling.top_p <= 1
    is_min_p = 0 <= sampling.min_p <= 1
    is_xtc = 0 <= sampling.xtc_probability <= 1
    is_top_k = sampling.top_k >= 0
    if not (is_top_p and is_min_p and is_xtc and is_top_k):
        raise UsageError(
            "top-p must be in (0, 1], min-p and XTC's probability in [0, 1], "
            "top-k 0 or more.",
            "The defaults are 0.95, 0.05, 0 and 40.",
        )

    if not (math.isfinite(sampling.repeat_penalty) and sampling.repeat_penalty > 0):
        raise UsageError(
            "The repeat penalty must be above 0.", "1 is off; 1.1 is common."
        )
    penalties = (
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.dry_multiplier,
        sampling.dry_base,
    )
    if not all(map(math.isfinite, penalties)):
        raise UsageError("A penalty must be a number.", "0 is off; -2 to 2 is common.")

    for token, bias in sampling.logit_bias:
        if not (0 <= token < n_vocab and math.isfinite(bias)):
            raise UsageError(
                "The logit bias names tokens that this model does not have."
            )
