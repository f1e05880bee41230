"""`bench` and `verify`, independent of the CLI and the app."""
