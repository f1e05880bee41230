"""The inference engine: a target, drafters and the speculative loop."""
