"""Tests with models that were not made here, from the package index."""
