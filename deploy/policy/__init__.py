"""What a hospital permits.

Imports pki.
"""
