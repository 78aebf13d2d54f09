"""Losses of image-text pairs."""
