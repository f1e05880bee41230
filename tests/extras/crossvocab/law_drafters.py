"""Drafters of another vocabulary, for the laws of every drafter."""

from collections.abc import Callable, Sequence

from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import Drafter, Verifier
from tests.extras.crossvocab.fake_vocabularies import (
    DRAFT,
    PERMUTED,
    TARGET,
    PermutedModel,
    crossed,
)
from tests.support.fake_models import FakeModel, HistoryModel, TableModel, table


def crossed_by(
    make: Callable[[], FakeModel], pieces: tuple[Sequence[str], Sequence[str]]
) -> Callable[[Verifier, PreparedAnswer, list[int]], Drafter]:
    """Makes the drafter of an answer, over the model that `make` makes."""

    def make_drafter(
        verifier: Verifier, answer: PreparedAnswer, _text: list[int]
    ) -> Drafter:
        return crossed(
            make(),
            verifier,
            answer.sampling,
            len(answer.prompt),
            pieces=pieces,
            is_end=answer.is_eog,
        )

    return make_drafter


TWINS = {
    "the target under other numbers": crossed_by(
        lambda: PermutedModel(HistoryModel(1)), ("abcdef", PERMUTED)
    ),
}
GUESSERS = {
    "another vocabulary": crossed_by(
        lambda: HistoryModel(2, n_vocab=len(DRAFT)), (TARGET, DRAFT)
    ),
    "another vocabulary, a table": crossed_by(
        lambda: TableModel(table(2, len(DRAFT))), (TARGET, DRAFT)
    ),
}
