"""The aggregator process.

Imports admission, transport and what lies below.
"""
