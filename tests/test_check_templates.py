"""scripts/check_templates.py: localspec renders like transformers, if that is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from localspec.models.chat_template import builtin_templates
from tests import zoo

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_templates.py"

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the extra `templates` is not installed"
)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False
    )


def test_built_in_templates_render_the_same(tmp_path: Path) -> None:
    templates = {
        name: builtin_templates.load_source(name) for name in builtin_templates.STOP_STRINGS
    }
    templates |= {"chatty": zoo.CHAT_TEMPLATE, "thinker": zoo.THINKER_TEMPLATE}
    for name, source in templates.items():
        (tmp_path / f"{name}.jinja").write_text(source, encoding="utf-8")
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(templates)} templates" in done.stdout
    assert "0 texts differ" in done.stdout


def test_a_folder_without_templates_is_a_failure(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 1
