"""The cost of importing localspec, and the modules that it imports."""

import sys

from tests.support.run_command import ROOT, finish

HEAVY = {
    "click",
    "textual",
    "rich",
    "llama_cpp",
    "numpy",
    "huggingface_hub",
    "yaml",
    "psutil",
}


def imported(code: str) -> set[str]:
    """The modules that a script imports, beyond those of an empty script."""
    script = "import sys, json; before = set(sys.modules)\n"
    script += f"{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    asked = [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}",
    ]
    done = finish(asked)
    assert done.code == 0, done.err
    return set(done.document)


def test_localspec_and_an_error_bring_nothing_else() -> None:
    assert imported("import localspec; localspec.__version__; dir(localspec)") == {
        "localspec"
    }
    brought = imported("from localspec import LocalspecError")
    assert {name for name in brought if name.startswith("localspec.")} == {
        "localspec.errors"
    }


def test_an_llm_brings_nothing_that_draws_or_computes() -> None:
    brought = imported("from localspec import LLM, Answer, Piece, Stream, Token")
    heavy = HEAVY - {"yaml", "psutil"} | {
        "asyncio",
        "localspec.engine",
        "localspec.cli",
    }
    assert not brought & heavy
