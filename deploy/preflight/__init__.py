"""Checks before a study starts.

Imports agent, aggregator and what lies below.
"""
