"""localspec: local GGUF models, faster, by speculative decoding you can watch."""

__version__ = "0.1.0"
