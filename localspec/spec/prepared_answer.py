"""One answer as the engine sees it: made once from a request, which nothing else reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from localspec.protocol.events import Notice
from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.protocols import Verifier
from localspec.spec.thinking_budget import ThinkingBudget


class TokenPart(Struct, frozen=True):
    """A part of a prompt: a text and its pictures.

    It has one id for each cell of the KV cache that it takes. Those of a picture are
    negative (`spec/picture_ids.py`): equal for equal pictures, so that `PrefixCache`
    finds a shared prefix by comparing ids. Drafters other than prompt lookup read the
    text without its pictures (`spec/drafters/text_only.py`).
    """

    ids: list[int]


PromptPart = TokenPart


def join_parts(parts: Sequence[PromptPart]) -> list[int]:
    """The ids of all parts, in a new list."""
    ids: list[int] = []
    for part in parts:
        ids += part.ids
    return ids


class DraftRequest(Struct, frozen=True):
    """What a request says of drafting."""

    method: str = "auto"  # `auto`, `off`, or a drafter's name.
    max_length: int | None = None  # The most draft tokens of a round; None: adaptive.
    overlap: bool | None = None  # Draft on while the target verifies; None: as loaded.
    verify: VerifyMode = "coupled"  # The name of the answer's verifier.
    why: str = ""  # The caller's reason for `method`.
    prediction: tuple[int, ...] = ()  # Tokens that the answer probably repeats.
    owner: str = ""  # Whose texts prompt lookup may copy from: a client of the server.
    draft_prompt: list[int] | None = None
    """The prompt for a draft model that reads a chat by its own template and vocabulary;
    None if it reads the target's prompt.
    """


class PreparedAnswer(Struct, frozen=True):
    """The inputs of one answer. They depend on the pair, but not on other answers."""

    parts: tuple[PromptPart, ...]  # The prompt.
    sampling: SamplingParams
    max_tokens: int
    """The answer's length at most, with `resumed_tokens`: with 10 of these and a maximum
    of 30, up to 20 are generated.
    """
    verifier: Verifier
    is_eog: Callable[[int], bool]
    is_cancelled: Callable[[], bool]
    resumed_tokens: tuple[int, ...] = ()
    """Tokens that the answer begins with; generation continues after them."""
    shown_tokens: tuple[int, ...] = ()
    """Those of `resumed_tokens` that were sent by an earlier run, and not by the caller:
    a stop string may begin in them.
    """
    stop_strings: tuple[str, ...] = ()
    thinking: ThinkingBudget | None = None
    constraint: OutputConstraint | None = None
    """The grammar that the answer follows; `resumed_tokens` are committed to it."""
    n_alternatives: int | None = None
    """How many of the target's other tokens are reported beside each token; None: no
    probabilities at all.
    """
    drafting: DraftRequest = field(default_factory=DraftRequest)
    notices: tuple[Notice, ...] = ()  # About the prompt.

    @property
    def prompt(self) -> list[int]:
        """The ids of the prompt, in a new list."""
        return join_parts(self.parts)
