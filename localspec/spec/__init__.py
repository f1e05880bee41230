"""Speculative decoding: the loop, verifiers, sampling, drafters, constraints, policy."""
