"""The parts of knowing what is on the disk."""
