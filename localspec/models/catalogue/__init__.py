"""The parts of reading models.yaml."""
