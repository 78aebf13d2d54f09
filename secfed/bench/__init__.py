"""Benchmarks that run anywhere secfed is installed: each prints ratios measured in one run."""
