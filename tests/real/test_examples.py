"""The models that come along do the app's examples rightly."""

from pathlib import Path

import pytest

from localspec import LLM
from localspec.chat.examples import CODE_EXAMPLE, EXAMPLES


def test_the_demo_completes_its_example() -> None:
    with LLM("demo") as llm:
        answer = llm.generate(
            CODE_EXAMPLE.message, temperature=0, max_tokens=CODE_EXAMPLE.max_tokens
        )

    assert CODE_EXAMPLE.is_right(answer.text)
    assert answer.speculation["accepted"] > len(answer.tokens) / 2


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_first_model_does_an_example_rightly(number: int, smollm: Path) -> None:
    """Two of the forty seeds of `scripts/bench/bench.py examples`."""
    example = EXAMPLES[number]
    with LLM(str(smollm)) as llm:
        for seed in (1, 2):
            answer = llm.chat(
                example.message,
                temperature=0.2,
                seed=seed,
                max_tokens=100,
                spec=example.spec,
            )

            assert example.is_right(answer.said), answer.said
            speculation = answer.speculation
            steps = speculation["rounds"] + speculation["paused_rounds"]
            assert len(answer.tokens) > 2.5 * steps
