"""What screens are made of: one file a part."""
