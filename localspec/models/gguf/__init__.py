"""A GGUF file read by our own parser, with hard caps."""
