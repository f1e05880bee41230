"""llama.cpp through llama-cpp-python's low-level API; the only package that imports it."""

from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.head_context import BlockHeadContext, HeadContext
from localspec.engine.llama.hidden_states import (
    FinalHiddenStates,
    HeadsUnsupportedError,
    LayerHiddenStates,
)
from localspec.engine.llama.library import devices, versions

__all__ = [
    "BlockHeadContext",
    "FinalHiddenStates",
    "HeadContext",
    "HeadsUnsupportedError",
    "LayerHiddenStates",
    "LlamaContext",
    "devices",
    "versions",
]
