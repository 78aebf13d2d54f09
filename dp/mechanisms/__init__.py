"""Noise, and where it is added. Imports accounting."""
