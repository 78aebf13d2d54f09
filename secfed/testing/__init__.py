"""Checks for the tests of an algorithm of one's own. Imports all but what runs studies.

``case`` has small studies and plays them, ``check`` compares what comes out, and ``units`` measures what one
record adds to sums with noise.
"""

from secfed.testing.case import AlgorithmFault
from secfed.testing.check import check_algorithm

__all__ = ["AlgorithmFault", "check_algorithm"]
