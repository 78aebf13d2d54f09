"""Records of several views.

Imports algorithms.framework and algorithms.data.
"""
