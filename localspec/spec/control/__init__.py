"""Automatic speculation: draft source and length per round, from measured costs and
acceptance.
"""
