"""Durable writes, file locks, failpoints and signed files.

Imports only errors and crypto.
"""
