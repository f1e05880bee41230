"""Automatic speculation: draft source and length of each round, from measurements."""
