"""localspec: runs local GGUF models faster by speculative decoding, and shows how.

In a script:

    from localspec import LLM

    with LLM("demo") as llm:
        print(llm.generate("def fibonacci(n):"))
"""

TYPE_CHECKING = False  # not typing's: that would import typing
if TYPE_CHECKING:
    from localspec.api.answer import Answer, Piece
    from localspec.api.llm import LLM, Stream
    from localspec.errors import LocalspecError
    from localspec.protocol.events import Token
    from localspec.tools.folder_tools import FolderTools

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Answer",
    "FolderTools",
    "LocalspecError",
    "Piece",
    "Stream",
    "Token",
    "__version__",
]

_LAZY_MODULES = {
    "LLM": "localspec.api.llm",
    "Answer": "localspec.api.answer",
    "Piece": "localspec.api.answer",
    "Stream": "localspec.api.llm",
    "LocalspecError": "localspec.errors",
    "Token": "localspec.protocol.events",
    "FolderTools": "localspec.tools.folder_tools",
}
"""Imported on first use: importing one part of localspec does not load the others."""


def __getattr__(name: str) -> object:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_LAZY_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES})
