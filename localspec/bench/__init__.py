"""What `bench` and `verify` do, for every screen alike."""
