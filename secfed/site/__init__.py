"""The hospital's half of a round.

Imports protection, study and what lies below.
"""
