"""Pairs of image and report.

Imports algorithms.framework and algorithms.data.
"""
