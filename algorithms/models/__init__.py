"""Networks.

Imports algorithms.losses and what lies below.
"""
