"""What the engine and whoever drives it say to each other; standard library only."""
