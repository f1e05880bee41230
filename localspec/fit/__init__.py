"""Estimates memory and speed of a pair and chooses its settings, without loading it."""
