"""Messages over gRPC with mutual TLS.

Imports transport.
"""
