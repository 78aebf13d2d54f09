"""The aggregator's half of a round; it sees totals only.

Imports protection, study and what lies below.
"""
