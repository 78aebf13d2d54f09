"""FMCSC: multi-view clustering.

Imports the framework, data, models, losses and metrics.
"""
