"""The masked protocol: secure aggregation after Bonawitz et al. 2017.

Imports crypto's primitives only.
"""
