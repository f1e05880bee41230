"""What the bench and verify screens show, and the thread that finds it out."""
