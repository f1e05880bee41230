"""The only room that imports llama_cpp."""

from localspec.engine.llama.context import Llama
from localspec.engine.llama.library import devices, versions

__all__ = ["Llama", "devices", "versions"]
