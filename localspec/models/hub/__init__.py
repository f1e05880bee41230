"""The parts of a download from the hub."""
