"""Model files: references, catalogue, downloads, GGUF headers and pair compatibility."""
