"""Metrics that leave a site only as numerators and denominators to be summed.

Imports algorithms.models and what lies below.
"""
