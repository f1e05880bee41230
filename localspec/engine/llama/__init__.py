"""The only room that imports llama_cpp."""

from localspec.engine.llama.block import Block
from localspec.engine.llama.context import Llama
from localspec.engine.llama.head import Head
from localspec.engine.llama.library import devices, versions
from localspec.engine.llama.taps import LastStates, NoHeadsError, Taps

__all__ = ["Block", "Head", "LastStates", "Llama", "NoHeadsError", "Taps", "devices", "versions"]
