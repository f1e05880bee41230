"""The engine: one target, one drafter, one loop."""
