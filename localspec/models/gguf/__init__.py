"""GGUF files: a parser with hard limits, validation, and a writer of headers."""
