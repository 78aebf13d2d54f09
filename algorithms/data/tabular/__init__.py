"""Tables of numbers.

Imports algorithms.framework and algorithms.data.
"""
