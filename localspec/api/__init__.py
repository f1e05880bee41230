"""localspec in scripts: `from localspec import LLM`."""
