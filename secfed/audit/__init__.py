"""Checks of finished records."""
