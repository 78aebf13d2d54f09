"""Identity keys, certificates and TLS files.

Imports secfed and what lies below it, nothing of deploy.
"""
