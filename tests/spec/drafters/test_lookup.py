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
    """Over several clients, each growing as an answer does, it drafts as a new one would."""
    kept = LookupDrafter(1)
    for number, whole in enumerate(texts):
        kept.begin_answer(owner=str(number))
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
    drafter.begin_answer(prediction)
    tokens = drafter.propose(text, limit).tokens
    before = [*prediction, 3] if prediction else []
    like = LookupDrafter(1).propose([*before, *text], limit).tokens
    if 3 in like:
        like = like[: like.index(3)]
    assert tokens == like
    drafter.begin_answer([])
    assert (
        drafter.propose(text, limit).tokens
        == LookupDrafter(1).propose(text, limit).tokens
    )


def newest_repeat(text: list[int]) -> int:
    """Where the newest earlier place of the longest repeated end stops."""
    n = len(text)
    match = longest_repeat(text)
    end = text[n - match :]
    return max(at for at in range(match, n) if text[at - match : at] == end)


@settings(derandomize=True, max_examples=300)
@given(TEXTS)
def test_of_several_places_the_newest_is_copied(text: list[int]) -> None:
    draft = LookupDrafter(1).propose(text, 5)
    if draft.tokens:
        assert draft.copied_from == newest_repeat(text)


@settings(derandomize=True, max_examples=100)
@given(
    st.lists(
        st.lists(st.integers(0, 3), min_size=8, max_size=30), min_size=2, max_size=4
    )
)
def test_what_the_text_no_longer_has_is_like_text_before_it(
    texts: list[list[int]],
) -> None:
    """As an answer that is asked for again, or thinking that a template leaves out."""
    drafter = LookupDrafter(1)
    earlier: list[int] = []
    question = [4, 5]
    for number, answer in enumerate(texts):
        text = [*question, *answer]
        if number:
            tokens = drafter.propose(list(question), 8).tokens
            # 6 stands for the end of a text, over which no copy goes.
            like = LookupDrafter(1).propose([*earlier, *question], 8).tokens
            if 6 in like:
                like = like[: like.index(6)]
            assert tokens == like
        drafter.propose(text, 1)
        earlier += [*text, 6]


def test_another_client_copies_nothing_of_it() -> None:
    drafter = LookupDrafter()
    drafter.begin_answer(owner="a")
    drafter.propose([1, 2, 3, 4, 5, 6, 7, 8, 9], 5)

    drafter.begin_answer(owner="b")

    assert drafter.propose([1, 2], 5) == Draft()
    drafter.begin_answer(owner="a")
    assert drafter.propose([1, 2], 5) == Draft(), "it was forgotten"
