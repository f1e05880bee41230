"""What is reported, as lines of text with roles, for every front end alike."""
