"""Federated vision-language pre-training.

Imports the framework, dro, data, models, losses and metrics.
"""
