"""What the soak of the server takes for a fault, without a server."""

from collections import Counter

import pytest
from msgspec.structs import replace
from soak_serve import (
    N_PLACES,
    Answer,
    ServerState,
    Tally,
    ask_chat,
    find_faults,
    never_read,
    send_flood,
)

START = ServerState(
    n_taken=0,
    n_sockets=1,
    n_threads=5,
    server_mib=50.0,
    engine_mib=250.0,
    engine_pid=7,
    answers=("Red.", "Paris."),
)
ALL_PLACES = Counter({200: N_PLACES + 1})


def test_an_end_like_the_start_has_no_fault() -> None:
    end = replace(START, server_mib=60.0, n_threads=7)
    assert find_faults(START, end, ALL_PLACES, Tally()) == []


@pytest.mark.parametrize(
    ("end", "places", "word"),
    [
        (replace(START, n_taken=2), ALL_PLACES, "2 places are taken"),
        (START, Counter({200: 15, 429: 2}), "not every place"),
        (replace(START, answers=("Red.", "Rome.")), ALL_PLACES, "another one"),
        (replace(START, engine_pid=8), ALL_PLACES, "started again"),
        (replace(START, n_sockets=4), ALL_PLACES, "3 more sockets"),
    ],
)
def test_each_difference_of_the_end_is_a_fault(
    end: ServerState, places: Counter[int], word: str
) -> None:
    (fault,) = find_faults(START, end, places, Tally())
    assert word in fault


def test_a_polite_client_that_is_refused_is_a_fault() -> None:
    tally = Tally()
    tally.add(ask_chat, Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n{}"))
    tally.add(ask_chat, Answer(b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}"))
    (fault,) = find_faults(START, START, ALL_PLACES, tally)
    assert "ask_chat got 400" in fault


def test_a_hostile_client_may_be_refused_but_must_not_break_anything() -> None:
    tally = Tally()
    tally.add(send_flood, Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n{}"))
    tally.add(never_read, Answer(b""))
    tally.add(send_flood, Answer(b"HTTP/1.1 500 Internal Server Error\r\n\r\n{}"))
    (fault,) = find_faults(START, START, ALL_PLACES, tally)
    assert "send_flood got 500" in fault
