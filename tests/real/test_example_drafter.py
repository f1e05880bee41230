"""The example package's drafter with a published model: the text stays the target's."""

from pathlib import Path

import pytest

from tests.support import example_drafter
from tests.support.run_command import ROOT, localspec

pytestmark = pytest.mark.long
QUESTION = ("-p", "Count from one to ten.", "--temperature", "0", "--max-tokens", "48")


def test_the_text_is_that_of_plain_decoding(smollm: Path, tmp_path: Path) -> None:
    example_drafter.install(example_drafter.SOURCE, tmp_path)
    beside = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    ask = ("run", smollm, *QUESTION, "--exact", "on", "--json", "--spec")

    plain = localspec(*ask, "off", env=beside)
    echoed = localspec(*ask, "echo", env=beside)

    assert plain.code == 0, plain.err
    assert echoed.code == 0, echoed.err
    assert echoed.document["text"] == plain.document["text"]
    assert set(echoed.document["speculation"]["by_source"]) == {"echo"}
    assert echoed.document["speculation"]["drafted"] > 0
