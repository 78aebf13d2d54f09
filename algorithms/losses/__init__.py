"""Losses of image-text pairs.

Imports algorithms.data, algorithms.framework and what lies below.
"""
