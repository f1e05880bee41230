"""A draft model with another vocabulary, behind a picture that it does not see."""

from localspec.protocol.wire import SamplingParams
from tests.support.picture_prompts import TALL, WIDE
from tests.support.picture_sessions import seeing_session
from tests.support.sessions import GREEDY
from tests.support.vision_models import VisionModels
from tests.support.zoo import Zoo

SEEDED = SamplingParams(temperature=0.8, top_k=20, seed=5)


def test_drafts_by_text_leave_the_text_as_it_is(
    vision_models: VisionModels, zoo: Zoo
) -> None:
    with seeing_session(vision_models, "smolvlm", zoo["reordered"]) as session:
        draft = session.session._pair.loaded_draft
        assert draft is not None
        assert draft.kind == "crossvocab"
        prompt = session.prompt("see ", WIDE, " and ", TALL, " what is it?")
        for sampling in (GREEDY, SEEDED):
            plain = session.answer(prompt, sampling=sampling)
            drafted = session.answer(prompt, "model", sampling=sampling)
            assert drafted.tokens == plain.tokens
            assert drafted.n_drafted > 0
