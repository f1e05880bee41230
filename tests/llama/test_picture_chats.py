"""Chats with pictures that are edited, branched, stopped, left and shortened at random.

Whatever happened before, the next answer is as if its text were read anew.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from msgspec.structs import replace

from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import SamplingParams
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.picture_ids import find_cut
from localspec.spec.prefix_cache import ConversationSnapshots, PrefixCache
from localspec.spec.prepared_answer import PreparedAnswer, TokenPart
from localspec.spec.protocols import Logits
from localspec.spec.speculative_loop import Drafting, RoundResult, speculative_decode
from localspec.spec.verifiers import make_verifier
from tests.support.long_cases import LONG
from tests.support.picture_prompts import (
    PICTURE_SETTINGS,
    Part,
    SeeingModel,
    seeing_model,
)
from tests.support.sessions import GREEDY
from tests.support.vision_models import KINDS, VisionModels, noise

N_OPERATIONS = 500
N_PARTS = 10
"""Each begins with an empty chat, and takes well below a test's limit of time."""
MAX_CELLS = 420
TOLERANCE = 0.01
"""Passes of other widths round differently; a wrong place moves a logit by 0.1."""
TEXTS = (" what is it?", " and this", " tell me the one", " a b c", " yes", "\n")


class RandomChats:
    """Chats of one engine; each operation ends in an answer, or in a stop."""

    def __init__(self, model: SeeingModel, fresh: SeeingModel, seed: int) -> None:
        self.random = Random(seed)
        self.model = model
        self.fresh = fresh
        context = model.context
        saves = context.save_checkpoint if context.saves_checkpoints else None
        self.cache = PrefixCache(context, saves, context.rollback)
        self.snapshots = ConversationSnapshots([self.cache], 8 * 2**20)
        self.lookup = LookupDrafter()
        self.chats: list[list[list[int]]] = [[], [], []]
        """The messages of each chat, as ids; questions and answers in turn."""
        self.at = 0
        self.n_polls_left = 0
        """The poll that stops what runs; 0 if none does."""
        self.n_stopped = 0
        context.is_interrupted = self._is_interrupted

    @property
    def chat(self) -> list[list[int]]:
        return self.chats[self.at]

    def text(self) -> list[int]:
        return [1, *(token for message in self.chat for token in message)]

    def _is_interrupted(self) -> bool:
        if self.n_polls_left:
            self.n_polls_left -= 1
            return self.n_polls_left == 0
        return False

    # --- operations

    def ask(self) -> None:
        parts: list[Part] = ["", self.random.choice(TEXTS)]
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            width = self.random.choice((20, 40, 90, 150))
            height = self.random.choice((20, 50, 90))
            picture = noise(width, height, seed=self.random.randrange(4))
            parts += [picture, self.random.choice(TEXTS)]
        self.chat.append(self.model.prompt(*parts)[1:])

    def edit(self) -> None:
        del self.chat[self.random.randrange(len(self.chat) + 1) :]
        self.ask()

    def branch(self) -> None:
        source = self.chats[self.random.randrange(len(self.chats))]
        n_shared = self.random.randrange(len(source) + 1)
        self.chats[self.at] = [list(message) for message in source[:n_shared]]
        self.ask()

    def switch(self) -> None:
        self.at = self.random.randrange(len(self.chats))
        if not self.chat or self.random.random() < 0.5:
            self.ask()

    def shorten(self) -> None:
        """The oldest messages leave a full context."""
        del self.chat[: self.random.randrange(len(self.chat) + 1)]
        self.ask()

    def cut_anywhere(self) -> None:
        """The end of a text is lost, as by a stop string."""
        text = [token for message in self.chat for token in message]
        end = self.random.randrange(len(text) + 1)
        if end < len(text):
            end = find_cut(text, end)
        self.chats[self.at] = [text[:end]]
        self.ask()

    def forget_rows(self) -> None:
        """All rows of pictures left the RAM."""
        self.model.projector._states.clear()
        self.model.projector._state_bytes = 0
        self.ask()

    def stop(self) -> None:
        """The next answer is stopped: in a pass, or while rows are computed."""
        self.forget_rows()
        self.n_polls_left = self.random.randrange(1, 12)

    def run(self) -> None:
        operation = self.random.choice(
            (
                self.ask,
                self.ask,
                self.edit,
                self.branch,
                self.switch,
                self.shorten,
                self.cut_anywhere,
                self.forget_rows,
                self.stop,
                self.stop,
            )
        )
        operation()
        while len(self.text()) > MAX_CELLS:
            del self.chat[0]
        if not self.chat:
            self.ask()
        self._answer()

    def _answer(self) -> None:
        text = self.text()
        sampling = GREEDY
        if self.random.random() < 0.3:
            sampling = SamplingParams(temperature=0.9, seed=self.random.randrange(99))
        answer = PreparedAnswer(
            parts=(TokenPart(text),),
            sampling=sampling,
            max_tokens=self.random.randrange(1, 14),
            verifier=make_verifier("coupled", sampling.seed),
            is_eog=self.model.context.vocabulary.is_eog,
            is_cancelled=lambda: False,
        )
        self.snapshots.switch_to(text)
        drafting = Drafting(self.lookup, 5, SpeculationPlan("on", ""))
        steps = speculative_decode(self.cache, answer, drafting)
        tokens: list[int] = []
        for step in steps:
            if isinstance(step, RoundResult):
                tokens += step.tokens
                if self.random.random() < 0.03:
                    break  # The client has gone.
        del steps
        self.n_stopped += not tokens
        self.n_polls_left = 0
        if tokens:
            self.chat.append(tokens)

    # --- what must hold

    def check(self) -> None:
        """The logits after the chat's text are those of a text that is read anew."""
        text = self.text()
        row = self._read(text)
        self.fresh.context.truncate(0)
        expected = self._fresh_row(text)
        np.testing.assert_allclose(row, expected, rtol=0, atol=TOLERANCE)

    def _read(self, text: list[int]) -> Logits:
        self.snapshots.switch_to(text)
        self.cache.rewind_to(text)
        for _ in self.cache.prefill(text, lambda: False):
            pass
        rest = text[self.cache.n_cached :]
        row: Logits = self.cache.decode(rest, 1)[0].copy()
        return row

    def _fresh_row(self, text: list[int]) -> Logits:
        self._share_pictures()
        return self.fresh.read_anew(text)

    def _share_pictures(self) -> None:
        """The other model reads the same ids: it computes the rows itself."""
        known = self.model.projector._known
        for key, picture in list(known.items()):
            if key not in self.fresh.projector._known:
                self.fresh.projector.items(picture.load())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_operations", "part"),
    [
        (24, 0),
        *(
            pytest.param(N_OPERATIONS // N_PARTS, part, marks=LONG)
            for part in range(1, N_PARTS + 1)
        ),
    ],
)
def test_the_next_answer_is_as_from_fresh(
    tmp_path: Path,
    kind: str,
    n_operations: int,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.spec.prefix_cache.MIN_TOKENS", 24)
    models = VisionModels(tmp_path, Kind.F32)
    # Flash attention rounds by the width of a pass.
    settings = replace(
        PICTURE_SETTINGS,
        flash_attn="off",
        kv_type="f32",
        n_ubatch=128 if kind == "gemma4" else 64,
        n_ctx=768,
        swa_full=kind != "gemma3",
    )
    fresh_settings = replace(settings, swa_full=True)
    with (
        seeing_model(models, kind, snapshots=6, settings=settings) as model,
        seeing_model(models, kind, settings=fresh_settings) as fresh,
    ):
        chats = RandomChats(model, fresh, seed=len(kind) + 100 * part)
        for _ in range(n_operations):
            chats.run()
            chats.check()
        assert chats.n_stopped >= n_operations // 40
