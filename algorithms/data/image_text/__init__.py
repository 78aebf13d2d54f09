"""Pairs of image and report."""
