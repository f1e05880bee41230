"""The engine loads damaged model files in a fork each: the parent never exits.

The damage is seeded, so a run repeats.  What dies of a signal must be an end that has a name.
"""

import faulthandler
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from localspec import errors
from localspec.engine_process import exit_causes
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)
from tests.support.long_cases import bulk
from tests.support.zoo import Zoo

OUTCOMES = ("well", "refused", "bug")
"""By the exit code of a fork."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut, overwritten, zeroed or with flipped bits, most often in the header."""
    out = bytearray(data)
    head = min(len(out), 8192)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(out[: rng.randrange(len(out))])
    if kind == 1:
        start = rng.randrange(len(out))
        out[start : start + rng.randrange(1, 4096)] = bytes(min(4096, len(out) - start))
        return bytes(out[: len(data)])
    for _ in range(rng.choice((1, 1, 2, 8))):
        is_in_header = kind < 4
        end = head if is_in_header else len(out)
        place = rng.randrange(end)
        if kind == 2:
            out[place] ^= 1 << rng.randrange(8)
        else:
            out[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(out)


def end_in_a_fork(path: Path) -> str:
    """How a fork ended that loaded the file and said three tokens with it."""
    from localspec.engine.session import Session  # noqa: PLC0415  the child's half

    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            # OpenMP's threads do not survive a fork
            one_thread = ContextSettings(n_threads=1)
            session = Session(LoadCommand(str(path), target_settings=one_thread))
            list(
                session.generate(
                    GenerateCommand("ab", SamplingParams(temperature=0), max_tokens=3)
                )
            )
        except errors.LocalspecError:
            os._exit(1)
        except BaseException:  # the exit code reports it to the parent
            os._exit(2)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return OUTCOMES[code]
    return exit_causes.classify_exit(code, ()).how


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_files_damaged_at_random_are_refused_or_die_in_the_fork(
    zoo: Zoo, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = bulk(200, 600) if request.config.getoption("--long") else 60
    data = zoo["target"].read_bytes()
    rng = random.Random(20261121)
    path = tmp_path / "damaged.gguf"
    ends: Counter[str] = Counter()
    for _ in range(count):
        path.write_bytes(damaged(data, rng))
        ends[end_in_a_fork(path)] += 1
    assert ends["bug"] == 0
    assert ends["refused"] > count / 4
    assert all(
        end in ("well", "refused") or end.startswith("signal SIG") for end in ends
    )
