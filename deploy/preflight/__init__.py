"""Checks before a study starts."""
