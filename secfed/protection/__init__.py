"""Plain, masked and encrypted sums behind one interface.

Imports runs and what lies below.
"""
