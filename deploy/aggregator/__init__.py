"""The aggregator process.

Imports admission, carriers and what lies below.
"""
