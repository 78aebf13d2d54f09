"""Checks of finished records.

Imports server, site and what lies below.
"""
