"""Sessions on tiny models that see: answers to prompts of texts and pictures."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.engine.session import Session
from localspec.llama.images import Projector
from localspec.models.gguf import reader
from localspec.models.projector_kinds import projector_kind
from localspec.protocol.wire import LoadCommand, SamplingParams
from localspec.spec.constraints.grammars import Grammars
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.prepared_answer import DraftRequest, PreparedAnswer, TokenPart
from localspec.spec.speculative_loop import RoundResult, speculative_decode
from localspec.spec.verifiers import make_verifier
from tests.support.picture_prompts import PICTURE_SETTINGS, Part, SeeingModel
from tests.support.sessions import GREEDY
from tests.support.vision_models import VisionModels


class PictureAnswer(Struct, frozen=True):
    tokens: list[int]
    rounds: list[RoundResult]

    @property
    def n_accepted(self) -> int:
        return sum(step.accepted for step in self.rounds)

    @property
    def n_drafted(self) -> int:
        return sum(len(step.draft.tokens) for step in self.rounds)


class SeeingSession(Struct, frozen=True):
    """A session whose target has a projector."""

    session: Session
    model: SeeingModel

    def prompt(self, *parts: Part) -> list[int]:
        return self.model.prompt(*parts)

    def answer(
        self,
        prompt: list[int],
        spec: str = "off",
        *,
        sampling: SamplingParams = GREEDY,
        max_tokens: int = 48,
        grammar: str = "",
        overlap: bool | None = None,
    ) -> PictureAnswer:
        """What the session makes of a prompt, by its own code but for the rendering."""
        session = self.session
        vocabulary = session._target.vocabulary
        constraint = None
        if grammar:
            start = Grammars(vocabulary).start(grammar, "")
            constraint = OutputConstraint(start, len(prompt))
        answer = PreparedAnswer(
            parts=(TokenPart(list(prompt)),),
            sampling=session._preparer.bind_sampling(sampling),
            max_tokens=max_tokens,
            verifier=make_verifier("coupled", sampling.seed),
            is_eog=vocabulary.is_eog,
            is_cancelled=session._is_cancelled,
            constraint=constraint,
            drafting=DraftRequest(method=spec, max_length=5, overlap=overlap),
        )
        session._stop_requested = False
        session._snapshots.switch_to(answer.prompt)
        drafting = session._drafters.make(answer)
        steps = speculative_decode(session._target_cache, answer, drafting)
        rounds = [step for step in steps if isinstance(step, RoundResult)]
        tokens = [token for step in rounds for token in step.tokens]
        return PictureAnswer(tokens, rounds)


@contextmanager
def seeing_session(
    models: VisionModels, kind: str, draft: Path | None = None, **load: Any
) -> Iterator[SeeingSession]:
    files = models[kind]
    draft_name = str(draft) if draft else None
    settings = load.pop("settings", PICTURE_SETTINGS)
    command = LoadCommand(str(files.model), draft_name, settings, settings)
    session = Session(replace(command, **load))
    with closing(session):
        target = session._target
        made_for = projector_kind(reader.read(files.projector))
        projector = Projector(files.projector, target, kind=made_for)
        with closing(projector):
            yield SeeingSession(session, SeeingModel(target, projector))
