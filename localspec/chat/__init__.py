"""A conversation, and what can be done with it."""
