"""The parent's side of the engine process: start, commands, log and crash handling."""
