"""When an answer only repeats itself."""

import random

from localspec.chat.repetition import RepetitionWatch, is_repeating

WORDS = "the cat sat on a mat and it was as warm as any sun could be".split()  # noqa: SIM905
PROSE = " ".join(random.Random(1).choices(WORDS, k=600))


def test_a_text_that_repeats_or_counts() -> None:
    for text in [
        PROSE + "\n\nI am happy to help. " * 20,
        "".join(f"{n}, " for n in range(100)),
        "".join(f"Step {n}: wait.\n" for n in range(40)),
        "abcdefgh" * 60,
    ]:
        assert is_repeating(text)


def test_prose_tables_rules_and_similar_lines_do_not_count() -> None:
    for text in [
        PROSE,
        "# Title\n" + "=" * 80 + "\n",
        "".join(f"| {word} | {n} |\n" for n, word in enumerate(PROSE.split()[:60])),
        "for i in range(3):\n    print(i)\n" * 4,
    ]:
        assert not is_repeating(text)


def test_it_is_said_once_however_the_text_is_cut() -> None:
    rng = random.Random(2)
    watch = RepetitionWatch()
    text = PROSE + "round and round we go. " * 60
    found = []
    while text:
        n = rng.randint(1, 30)
        found.append(watch.add(text[:n]))
        text = text[n:]
    assert found.count(True) == 1 and not any(found[: len(found) // 3])
