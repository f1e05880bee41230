"""Tests with published models from the package index: SmolLM2 135M and Gemma 3 270M."""
