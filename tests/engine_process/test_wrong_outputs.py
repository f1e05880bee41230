"""An engine that writes wrong values is at fault where it writes them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.settings import LoadedModel
from localspec.chat.speculation_stats import SpeculationStats
from localspec.protocol import events, wire
from localspec.protocol.round_totals import RoundTotals
from localspec.report.answer_stats import format_stats
from localspec.report.lines import plain_text
from localspec.report.speculation import view_speculation
from localspec.serve.completion import timings
from localspec.serve.request_metrics import RequestActivity, ServerActivity

OTHER_TOKEN = events.Alternative(6, "b", p=0.2, rank=2, p_draft=0.1)
TOKEN = events.Token(
    5, "a", "accepted", p_target=0.5, p_draft=0.4, rank=1, alternatives=(OTHER_TOKEN,)
)
ROUND = events.Round(
    n=0,
    source="model",
    reason="",
    drafted=2,
    accepted=1,
    tokens=(TOKEN,),
    ms=events.RoundTimes(draft=1.0, verify=2.0, host=0.5),
)
TOTALS: dict[str, Any] = {
    "tokens": 3,
    "prompt_tokens": 7,
    "reused_tokens": 2,
    "timings": {
        "prefill_ms": 4.5,
        "first_token_ms": 4.5,
        "decode_ms": 9.0,
        "tokens_per_second": 100.5,
    },
    "speculation": RoundTotals.of([ROUND, ROUND]).to_json(),
    "thinking": {"tokens": 1, "open": False},
}
CHAT = {
    "template": "own",
    "thinking": ["<think>", "</think>"],
    "tools": "tags",
    "thinking_controls": ["switch"],
}
READY = events.EngineReady(
    engine={"llama_cpp_python": "1"},
    model="a.gguf",
    draft="b.gguf",
    devices=("CPU",),
    settings={
        "target": {"n_ctx": 1024, "n_threads": 2},
        "draft": {"n_ctx": 1024},
        "draft_kind": "model",
        "draft_max": 16,
        "chat": CHAT,
        "fim": {"pre": 1, "suf": 2, "mid": 3},
    },
    memory={"target": 100, "draft": None},
    load_ms=5.5,
)
OUTPUTS: dict[str, wire.EngineOutput] = {
    "ready": READY,
    "prefill": events.Prefill(1, 2, 0),
    "plan": events.SpeculationPlan("on", "faster", 1.5, 3),
    "round": ROUND,
    "notice": events.Notice("info", "a", "b"),
    "finished": events.GenerationFinished("eog", "tail", TOTALS, "stop"),
    "measured": wire.MeasuredCosts(2.0, {"1": 1.0, "4": 1.5}),
    "tokenized": wire.TokenizeResult((1, 2), ("a", "\xe9")),
    "counted": wire.CountResult(3),
    "draft_score": wire.DraftScore((1, 2), (0, 1)),
    "inspected": wire.InspectResult((events.TokenScore(0.5, 1),)),
    "failed": wire.FailureReply("a", "b", "c"),
    "alive": wire.HeartbeatReply(1.0),
    "loading": wire.LoadProgress("reading", "a.gguf", 0.5),
}
WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1.5, float("nan"), "x", "\ud800", [], [None], {}, {"x": "y"},
)  # fmt: skip


def mutate(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced by each wrong one, and left out."""
    if isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
            yield from (
                {**value, key: inner} for inner in (*WRONG, *mutate(value[key]))
            )
    elif isinstance(value, list):
        for i, part in enumerate(value):
            for inner in (*WRONG, *mutate(part)):
                yield [*value[:i], inner, *value[i + 1 :]]


def use(output: Any) -> None:
    """What the parent does with an output."""
    if isinstance(output, events.EngineReady):
        format(LoadedModel.from_ready(output).n_ctx, ",")
    if isinstance(output, wire.MeasuredCosts):
        sorted(int(width) for width in output.curve)
    if isinstance(output, wire.TokenizeResult):
        list(zip(output.tokens, output.pieces, strict=bool(output.pieces)))
        "".join(output.pieces).encode("latin-1")
    used = events.Round | events.Prefill | events.GenerationFinished
    if not isinstance(output, used):
        return
    answer = GeneratedAnswer()
    request = RequestActivity(1, "/")
    activity = ServerActivity()
    for event in (ROUND, output):
        answer.add(event)
        request.add(event)
        activity.add(event)
    assert timings(answer) is not None
    assert answer.context_tokens is not None
    assert activity.metrics()
    if answer.final_totals:
        view = view_speculation(SpeculationStats(answer=answer))
        for line in format_stats(view, answer.final_totals, seed=1):
            plain_text(line)


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_a_wrong_value_is_refused_or_harmless(output: wire.EngineOutput) -> None:
    body = json.loads(wire.encode_output(1, output))
    n_refused = 0
    n_read = 0
    for wrong in mutate(body):
        line = json.dumps(wrong).encode()
        try:
            _, decoded = wire.decode_output(line)
        except ValueError:
            n_refused += 1
            continue
        n_read += 1
        use(decoded)

    assert wire.decode_output(json.dumps(body).encode())[1] == output
    assert n_refused > n_read / 4
