"""The protocol between the engine process and its parent; imports the standard library
only.
"""
