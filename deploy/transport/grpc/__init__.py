"""Messages over gRPC with mutual TLS."""
