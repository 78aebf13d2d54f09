"""Identity keys, certificates and TLS files."""
