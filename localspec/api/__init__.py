"""The Python API: `from localspec import LLM`."""
