"""FedAvg and FedProx.

Imports the framework, data, models, losses and metrics.
"""
