"""The numbers of an answer in the forms that clients read: usage, timings, metrics, logprobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from localspec.chat.answer import GeneratedAnswer
from localspec.protocol.events import FinishReason, Token
from localspec.protocol.wire import DRAFT_MAX

_MIN_LOGPROB = -9999.0  # OpenAI's value for a token that is as good as impossible.
FINISH_REASONS: dict[FinishReason, str] = {
    "eog": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
}


def usage(answers: Sequence[GeneratedAnswer], *, has_prediction: bool) -> dict[str, Any]:
    """OpenAI's `usage`; the prompt of several choices counts once."""
    totals = [answer.finished.totals for answer in answers if answer.finished]
    prompt = max((total.get("prompt_tokens", 0) for total in totals), default=0)
    reused = max((total.get("reused_tokens", 0) for total in totals[:1]), default=0)
    completion = sum(answer.totals.tokens for answer in answers)
    details = {"reasoning_tokens": sum(t.get("thinking", {}).get("tokens", 0) for t in totals)}
    if has_prediction:
        copied = [
            counts
            for answer in answers
            for source, counts in answer.totals.by_source.items()
            if source.startswith("lookup")
        ]
        accepted = sum(counts.accepted for counts in copied)
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = sum(counts.drafted for counts in copied) - accepted
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reused},
        "completion_tokens_details": details,
    }


def timings(answer: GeneratedAnswer) -> dict[str, Any]:
    """llama.cpp's `timings`. Before the end they are those of the rounds so far."""
    totals = answer.finished.totals if answer.finished else {}
    times = totals.get("timings", {})
    rounds = answer.rounds
    decode_ms = times.get(
        "decode_ms", sum(r.ms.draft + r.ms.verify + r.ms.host for r in rounds[1:])
    )
    prefill = answer.prefill
    total = totals.get("prompt_tokens", prefill.total if prefill else 0)
    reused = totals.get("reused_tokens", prefill.reused if prefill else 0)
    prompt_ms = times.get("prefill_ms", rounds[0].ms.verify if rounds else 0.0)
    values: dict[str, Any] = {
        "cache_n": reused,
        **_rates("prompt", total - reused, total - reused, prompt_ms),
        **_rates("predicted", answer.totals.tokens, answer.totals.tokens - 1, decode_ms),
    }
    if answer.totals.drafted:
        values["draft_n"] = answer.totals.drafted
        values["draft_n_accepted"] = answer.totals.accepted
    return values


def _rates(name: str, n: int, n_timed: int, ms: float) -> dict[str, Any]:
    """`n_timed` of the n tokens took `ms`: the first one comes with the prompt."""
    ms = round(ms, 3)
    is_known = n_timed > 0 and ms > 0
    return {
        f"{name}_n": n,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / n_timed if is_known else 0.0,
        f"{name}_per_second": n_timed * 1e3 / ms if is_known else 0.0,
    }


def metrics(answer: GeneratedAnswer, draft_length: int | None) -> dict[str, Any]:
    """vLLM's `metrics.speculative_decoding`, and why it was on or off at the end."""
    totals, plan = answer.totals, answer.plan
    speculation: dict[str, Any] = {
        "mean_acceptance_length": totals.mean_accepted_length,
        "draft_acceptance_rate": totals.acceptance_rate,
        "acceptance_histogram": list(totals.histogram),
        "num_spec_steps": totals.rounds,
        "num_accepted_draft_tokens": totals.accepted,
        "num_draft_tokens": totals.drafted,
        "num_spec_tokens": DRAFT_MAX if draft_length is None else draft_length,
        "num_plain_steps": totals.plain_rounds,
        "by_source": totals.sources_to_json(),
    }
    if plan is not None:
        speculation |= {"state": plan.state, "why": plan.why, "speedup": plan.speedup}
    return {"speculative_decoding": speculation}


def chat_logprobs(tokens: Sequence[Token], n_top: int) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat."""
    content = []
    for token in tokens:
        item = _logprob(token.text, token.p_target)
        item["top_logprobs"] = [_logprob(text, p) for text, p in _likeliest(token, n_top)]
        content.append(item)
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[Token], n_top: int, offset: int) -> dict[str, Any]:
    """The four arrays of OpenAI's older completions; `offset` is that of the first token."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_log(token.p_target) for token in tokens],
        "top_logprobs": [
            {text: _log(p) for text, p in _likeliest(token, n_top)} for token in tokens
        ],
        "text_offset": offsets,
    }


def _likeliest(token: Token, n: int) -> list[tuple[str, float]]:
    """Texts and probabilities."""
    ranked = [(other.rank, other.id, other.text, other.p) for other in token.alternatives]
    if token.rank is not None and token.p_target is not None:
        ranked.append((token.rank, token.id, token.text, token.p_target))
    return [(text, p) for _, _, text, p in sorted(ranked)[:n]]


def _logprob(text: str, p: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": _log(p), "bytes": list(text.encode("utf-8", "replace"))}


def _log(p: float | None) -> float:
    return round(math.log(p), 6) if p else _MIN_LOGPROB


def token_details(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """`localspec.tokens`: where each token came from."""
    return [
        {"id": token.id, "text": token.text, "class": token.kind, "p": token.p_target}
        for token in tokens
    ]
