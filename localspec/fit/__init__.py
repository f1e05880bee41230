"""Estimates memory and speed of a model pair and chooses its settings, without loading
it.
"""
