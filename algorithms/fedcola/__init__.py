"""FedCola.

Imports the framework, data, models, losses and metrics.
"""
