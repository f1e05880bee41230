"""scripts/refresh_catalog.py: the hub's values go into the file, and nothing else changes."""

from __future__ import annotations

import sys
from pathlib import Path

from localspec.errors import NotFoundError
from localspec.models import catalog
from localspec.models.hub.client import RepoInfo
from localspec.models.reference import RepoFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import refresh_catalog  # noqa: E402

COMMIT = "c" * 40


class FakeHub:
    """A hub with one repository, in which the Q4 file was renamed."""

    def list_files(self, repo: str) -> RepoInfo:
        if repo != "Qwen/Qwen3-8B-GGUF":
            raise NotFoundError(f"There is no {repo}.", "Search for it.")
        files = (
            RepoFile("Qwen3-8B-Q8_0.gguf", 123, "d" * 64),
            RepoFile("dflash-Qwen3-8B-Q8_0.gguf", 45, "e" * 64),
        )
        return RepoInfo(repo, COMMIT, files, "mit")


def test_facts_and_problems(tmp_path: Path) -> None:
    models = catalog.load(ROOT / "models.yaml").models
    chosen = [models[name] for name in ("demo-target", "qwen3-8b", "qwen3-8b-q8", "phi-4")]
    facts, problems = refresh_catalog.asked(FakeHub(), chosen)
    said = {"bytes": "123", "sha256": "d" * 64, "revision": COMMIT, "licence": "mit"}
    assert facts == {"qwen3-8b-q8": said}
    assert [problem.partition(":")[0] for problem in problems] == ["qwen3-8b", "phi-4"]
    assert "Qwen3-8B-Q8_0.gguf" in problems[0]


def test_only_values_change(tmp_path: Path) -> None:
    before = (ROOT / "models.yaml").read_text(encoding="utf-8")
    assert refresh_catalog.written(before, {}) == before
    said = {"bytes": "123", "sha256": "d" * 64, "revision": COMMIT}
    after = refresh_catalog.written(before, {"qwen3-8b-dflash": said, "qwen3-8b": said})
    path = tmp_path / "models.yaml"
    path.write_text(after, encoding="utf-8")
    then, now = catalog.load(ROOT / "models.yaml"), catalog.load(path)
    head = now.models["qwen3-8b-dflash"]
    assert (head.bytes, head.about, head.sha256, head.revision) == (123, None, "d" * 64, COMMIT)
    assert now.models["qwen3-8b"].licence == "apache-2.0", "what the hub does not say stays"
    same = set(then.models) - {"qwen3-8b-dflash", "qwen3-8b"}
    assert all(then.models[name] == now.models[name] for name in same)
    assert list(then.pairs) == list(now.pairs)
    comments = [line for line in before.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in after.splitlines() if line.lstrip().startswith("#")] == comments
