"""The same messages through a Flower SuperLink.

Imports transport.
"""
