"""All sites of a study in one process.

Imports server, site and what lies below.
"""
