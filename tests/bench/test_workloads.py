"""The benchmark's prompts, the order of its runs, and the timing of a run."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from localspec.bench import workloads
from localspec.bench.workloads import BenchRequest, BenchRun, Workload
from localspec.errors import EngineError, UsageError
from localspec.protocol.events import Event
from localspec.protocol.wire import GenerateCommand
from tests.bench.fake_engine import Clock, FakeEngine, collect_runs

CODE = Workload("code", "", ("a", "b", "c"))
CHAT = Workload("chat", "", ("d", "e"))
BOTH = BenchRequest("", (CODE, CHAT), (0.0, 0.8), 20)


def run(engine: FakeEngine, max_tokens: int = 20) -> list[BenchRun]:
    request = BenchRequest(
        name="",
        workloads=(CODE,),
        temperatures=(0.0, 0.8),
        max_tokens=max_tokens,
        spec="model",
        why="for show",
        rounds=1,
    )
    return collect_runs(engine, request)


@pytest.mark.parametrize("n_rounds", [1, 2, 3])
def test_every_task_has_both_arms_and_the_arms_alternate(n_rounds: int) -> None:
    jobs = BOTH.schedule_runs(n_rounds)
    assert len(jobs) == len(set(jobs)) == 2 * n_rounds * 2 * 5
    assert {arm for _, arm in jobs} == {"plain", "speculative"}
    first_task, _ = jobs[0]
    arms = [arm for task, arm in jobs if task == first_task]
    assert arms[0] != arms[1]
    order = [
        arm for task, arm in jobs if task.workload == "code" and task.temperature == 0
    ]
    assert all(a != b for a, b in pairwise(order[:6]))


def test_no_run_follows_one_of_the_same_prompt() -> None:
    """Its first token would come too soon."""
    texts = [task.text for task, _ in BOTH.schedule_runs(3)]
    assert all(a != b for a, b in pairwise(texts))


def test_neither_arm_is_first_more_often() -> None:
    first: dict[object, str] = {}
    for task, arm in BenchRequest("", (CODE,), (0.0, 0.8), 20).schedule_runs(1):
        first.setdefault(task, arm)
    assert sorted(first.values()) == ["plain"] * 3 + ["speculative"] * 3


def test_the_arms_differ_in_speculation_alone() -> None:
    engine = FakeEngine(Clock())
    run(engine)
    by_text: dict[object, list[GenerateCommand]] = {}
    for request in engine.requests:
        by_text.setdefault((request.text, request.sampling), []).append(request)
    assert len(by_text) == 6
    for requests in by_text.values():
        arms = {(request.spec, request.why) for request in requests}
        assert arms == {("off", ""), ("model", "for show")}
        others = {(request.max_tokens, request.verify) for request in requests}
        assert others == {(20, "coupled")}


def test_speed_first_token_and_latencies() -> None:
    plain, speculative = run(FakeEngine(Clock()), max_tokens=10)[:2]
    assert (plain.arm, speculative.arm) == ("plain", "speculative")
    assert plain.answer.tokens_per_second == pytest.approx(1.0)
    assert plain.answer.latencies == pytest.approx([1000.0] * 9)
    assert plain.answer.first_token_ms == pytest.approx(250.0)
    # Three tokens per round of 1.5 s: half a second each.
    assert speculative.answer.tokens_per_second == pytest.approx(2.0)
    assert speculative.answer.latencies == pytest.approx([500.0] * 9)
    assert plain.answer.ids == speculative.answer.ids == list(range(100, 110))
    assert plain.answer.text.split()[0] == "w100"


class NeverFinishing(FakeEngine):
    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        yield from list(super().generate(request))[:-1]


def test_a_missing_end_is_an_error() -> None:
    with pytest.raises(EngineError, match="without a final event"):
        run(NeverFinishing(Clock()))


NAMES = ["code", "prose", "chat", "long-form", "copy-edit"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    loaded = workloads.load(["chat", "code", "chat"])
    assert [workload.name for workload in loaded] == ["code", "chat"]
    with pytest.raises(UsageError, match="no workload called poems") as failure:
        workloads.load(["code", "poems"])
    assert all(name in failure.value.hint for name in NAMES)
