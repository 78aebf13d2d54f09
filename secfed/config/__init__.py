"""Schema helpers, user plug-ins and the study sections that every layer reads.

Imports nothing above storage.
"""
