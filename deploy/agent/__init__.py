"""The hospital agent process.

Imports admission, transport and what lies below.
"""
