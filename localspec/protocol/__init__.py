"""The protocol between the engine process and its parent."""
