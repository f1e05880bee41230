"""Diagnoses this installation: findings with the command that mends each, and three
repairs.
"""
