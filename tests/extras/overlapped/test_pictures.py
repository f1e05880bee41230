"""Drafting on while the target verifies, behind a picture that the draft does not see."""

import pytest

from localspec.protocol.wire import SamplingParams
from tests.support.picture_prompts import TALL, WIDE
from tests.support.picture_sessions import seeing_session
from tests.support.sessions import GREEDY
from tests.support.vision_models import VisionModels

SEEDED = SamplingParams(temperature=0.8, top_k=20, seed=5)


@pytest.mark.parametrize("kind", ["smolvlm", "qwen2vl"])
def test_overlapped_drafts_leave_the_text_as_it_is(
    vision_models: VisionModels, kind: str
) -> None:
    draft = vision_models.draft(kind)
    with seeing_session(vision_models, kind, draft, overlap=True) as session:
        prompt = session.prompt("see ", WIDE, " and ", TALL, " what is it?")
        for sampling in (GREEDY, SEEDED):
            plain = session.answer(prompt, sampling=sampling)
            drafted = session.answer(prompt, "model", sampling=sampling, overlap=True)
            assert drafted.tokens == plain.tokens
            overlaps = {step.draft.overlap for step in drafted.rounds}
            assert overlaps & {"hit", "miss"}
            assert drafted.n_accepted > 0
