"""Lookup copies what followed the same tokens before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.protocols import Draft

TEXTS = st.lists(st.integers(0, 2), max_size=40) | st.lists(
    st.integers(0, 1), max_size=40
)


def longest_repeat(text: list[int]) -> int:
    n = len(text)
    for length in range(n - 1, 0, -1):
        if any(
            text[at : at + length] == text[n - length :] for at in range(n - length)
        ):
            return length
    return 0


@settings(derandomize=True, max_examples=150)
@given(TEXTS, st.integers(1, 3), st.integers(1, 8))
def test_a_draft_continues_an_earlier_place(
    text: list[int], shortest: int, limit: int
) -> None:
    draft = LookupDrafter(shortest).propose(text, limit)
    match = longest_repeat(text)
    if match < shortest:
        assert draft == Draft()
        return
    assert len(draft.tokens) == min(limit, 2 * match)
    assert (draft.distributions, draft.source) == (None, "lookup")
    whole = [*text, *draft.tokens]
    n = len(text)
    shifts = [
        n - at for at in range(match, n) if text[at - match : at] == text[n - match :]
    ]
    assert any(
        all(whole[i] == whole[i - shift] for i in range(n, len(whole)))
        for shift in shifts
    ), "copied from nowhere"


@settings(derandomize=True, max_examples=80)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 4))
def test_what_it_knew_before_changes_no_draft(
    texts: list[list[int]], step: int
) -> None:
    """Over several chats, each growing as an answer does, it drafts as a new one would."""
    kept = LookupDrafter(1)
    for whole in texts:
        text: list[int] = []
        for at in range(0, len(whole), step):
            text += whole[at : at + step]
            assert kept.propose(text, 5) == LookupDrafter(1).propose(text, 5)


def test_a_chat_that_goes_on_is_followed_not_read_again() -> None:
    drafter = LookupDrafter()
    drafter.propose([1, 2, 3, 1, 2], 5)
    automaton = drafter._automaton
    assert drafter.propose([1, 2, 3, 1, 2, 3, 1], 5).tokens == [2, 3, 1, 2, 3]
    assert drafter._automaton is automaton
    assert automaton.size == 7


@settings(derandomize=True, max_examples=80)
@given(TEXTS, TEXTS, st.integers(1, 8))
def test_a_prediction_is_like_text_before_the_chat(
    prediction: list[int], text: list[int], limit: int
) -> None:
    """Except that no copy goes on from its end into the chat."""
    drafter = LookupDrafter(1)
    drafter.set_prediction(prediction)
    tokens = drafter.propose(text, limit).tokens
    before = [*prediction, 3] if prediction else []
    like = LookupDrafter(1).propose([*before, *text], limit).tokens
    if 3 in like:
        like = like[: like.index(3)]
    assert tokens == like
    drafter.set_prediction([])
    assert (
        drafter.propose(text, limit).tokens
        == LookupDrafter(1).propose(text, limit).tokens
    )
