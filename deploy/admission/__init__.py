"""A study asks, a hospital decides."""
