"""Targets that get a draft where they are opened by themselves."""

from pathlib import Path

from localspec import launch
from tests.support import head_models


def write_target_with_head(folder: Path, where: str = "in its folder") -> Path:
    """Writes a target and its head, which lies `in its folder` or `in its file`."""
    target = folder / "target.gguf"
    if where == "in its folder":
        head_models.quantised(head_models.deep()).write(target)
        head_models.quantised(head_models.eagle3()).write(folder / "eagle3-target.gguf")
    else:
        head_models.quantised(head_models.mimo2()).write(target)
    assert (
        launch.with_default_draft(launch.ResolvedPair(target, None)).draft is not None
    )
    return target
