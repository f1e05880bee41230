"""Diagnoses this installation: findings, what to do about each, and three repairs."""
