"""The engine process as its parent sees it."""
