"""This computer, and what it has shown."""
