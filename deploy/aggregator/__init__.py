"""The aggregator process."""
