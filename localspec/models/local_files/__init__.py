"""The model files on this computer."""
