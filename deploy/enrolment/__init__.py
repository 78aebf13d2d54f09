"""Consortium, members, rosters and the site folder.

Imports pki and policy.
"""
