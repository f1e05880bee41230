"""Constrained output: answers that follow a grammar or a JSON Schema."""
