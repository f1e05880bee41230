"""Model files: which there are, what they say, and which go together."""
