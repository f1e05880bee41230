"""The parent's side of the engine process."""
