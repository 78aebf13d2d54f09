"""Federated vision-language pre-training."""
