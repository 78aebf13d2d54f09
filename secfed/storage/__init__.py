"""Durable writes, file locks, failpoints and signed files."""
