"""The study file, and the algorithm, data and model that it builds.

Imports runs and what lies below.
"""
