"""scripts/train without torch: prompts, the target's answers in shards, the head file."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import head_answers
import head_files
import head_shards
import numpy as np
import pytest
from head_answers import AnswerPlan, BatchedTarget
from numpy.typing import NDArray

from localspec import LLM
from localspec.llama.context import LlamaContext
from localspec.llama.hidden_states import LayerHiddenStates
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings
from tests.support import head_models

LAYERS = (1, 2, 3)
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}assistant:"
)
PROMPTS = [f"the {letter} is {letter}" for letter in "abcdefgh"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "SEQUENCES": 3,
        "SEQUENCE_TOKENS": 160,
        "PROMPT_TOKENS": 80,
        "ANSWER_TOKENS": 24,
    }
    for name, size in {**sizes, "FOLLOW_UPS": 1}.items():
        monkeypatch.setattr(head_answers, name, size)
    monkeypatch.setattr(head_shards, "SHARD_TOKENS", 60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = head_models.deep()
    target.template = TEMPLATE
    return target.write(tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture
def target(model: Path, small: None) -> Iterator[BatchedTarget]:
    found = BatchedTarget(model, LAYERS, threads=1, seed=1)
    yield found
    found.close()


def conversations(
    folder: Path,
) -> Iterator[tuple[dict[str, NDArray[Any]], slice, slice]]:
    """A shard's arrays, and where each conversation is in them.

    The first slice is that of all tokens, the second one that of the target's own.
    """
    for shard in head_shards.shards(folder):
        arrays = {p.stem: np.load(p) for p in shard.glob("*.npy")}
        ends = arrays["lengths"].cumsum()
        finals = np.concatenate(([0], arrays["own"].cumsum()))
        for end, length in zip(ends, arrays["lengths"], strict=True):
            yield (
                arrays,
                slice(end - length, end),
                slice(finals[end - length], finals[end]),
            )


def alone(path: Path, tokens: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The hidden states and logits of a text in a context with one sequence."""
    settings = ContextSettings(n_ctx=256, n_gpu_layers=0)
    role = ModelRole(settings, n_outputs_max=256, n_rs_seq=0)
    context = LlamaContext(path, role)
    states = LayerHiddenStates(context.handle, context.model, LAYERS)
    logits = context.decode(tokens, len(tokens)).copy()
    found = states.states(len(tokens))
    context.close()
    return found, logits


def test_the_hidden_states_in_shards_are_those_of_their_tokens(
    model: Path, target: BatchedTarget, tmp_path: Path
) -> None:
    plan = AnswerPlan(tmp_path / "answers", PROMPTS, ("why is the a",))
    head_answers.write_answers(target, plan)
    output = head_files.Source(model).weights()["output.weight"]
    seen = 0
    for arrays, here, finals in conversations(plan.folder):
        tokens = arrays["tokens"][here]
        own = arrays["own"][here]
        states, logits = alone(model, tokens.tolist())
        assert np.allclose(arrays["states"][here], states, atol=0.02, rtol=0.01)
        assert np.allclose(arrays["finals"][finals] @ output.T, logits[own], atol=0.1)
        n_template = len(target.tokenize(target.render([("user", "")])))
        assert own.any() and not own[:n_template].any()
        seen += 1
    assert seen == len(PROMPTS)


def test_after_an_interruption_each_prompt_is_answered_once(
    target: BatchedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "answers"
    steps = itertools.count(1)
    step = head_answers.Answering.step

    def interrupt(answering: head_answers.Answering) -> None:
        if next(steps) == 60:
            raise KeyboardInterrupt
        step(answering)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(head_answers.Answering, "step", interrupt)
        head_answers.write_answers(target, AnswerPlan(folder, PROMPTS))
    first = head_shards.answered(folder)
    assert 0 < len(first) < len(PROMPTS)
    head_answers.write_answers(target, AnswerPlan(folder, PROMPTS))
    numbers: list[int] = []
    for shard in head_shards.shards(folder):
        numbers += np.load(shard / "prompts.npy").tolist()
    assert sorted(numbers) == list(range(len(PROMPTS)))


def test_a_head_with_a_reduced_vocabulary_drafts_and_changes_no_text(
    model: Path, tmp_path: Path
) -> None:
    source = head_files.Source(model)
    random = head_models.eagle3(layers=LAYERS, like=head_models.DEEP).tensors
    kept = np.arange(259, len(source.value("tokenizer.ggml.tokens")), 2, dtype=np.int64)
    path = tmp_path / "head.gguf"
    head_files.write_eagle3(path, source, LAYERS, random, kept)
    written = head_files.Source(path).weights(lambda name: name == "output.weight")
    rows = written["output.weight"]
    assert np.allclose(rows, source.weights()["output.weight"][kept], atol=0.01)
    with LLM(str(model), str(path), spec="eagle3", ctx=512, threads=1) as llm:
        drafted = llm.generate(
            "the one is", max_tokens=40, temperature=0.0, draft_max=3
        )
        plain = llm.generate("the one is", max_tokens=40, temperature=0.0, spec="off")
    assert drafted.speculation["drafted"] > 0
    assert drafted.text == plain.text
