"""secfed: federated learning between hospitals in which only sums leave a hospital."""

__version__ = "0.1.0"
