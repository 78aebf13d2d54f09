"""The privacy report as HTML, PDF and figures.

Imports secfed.audit.privacy.
"""
