"""The hospital agent process.

Imports admission, carriers and what lies below.
"""
