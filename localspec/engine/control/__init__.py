"""Choosing every round who guesses and how much, from measured costs and counted chances."""
