"""Model files: references, catalogue, downloads, GGUF headers, compatible pairs."""
