"""The encrypted protocol: packed BFV sums.

Imports crypto's primitives only.
"""
