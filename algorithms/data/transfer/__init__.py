"""Single and paired modalities.

Imports algorithms.framework and algorithms.data.
"""
