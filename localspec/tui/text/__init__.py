"""What a transcript is made of: no widgets, only lines at a width."""
