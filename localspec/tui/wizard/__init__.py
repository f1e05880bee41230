"""A new pair in three steps: what for, which, and whether; words and bars, but no screen."""
