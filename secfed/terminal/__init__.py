"""What every command prints with.

Imports simulation and what lies below.
"""
