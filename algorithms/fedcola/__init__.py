"""FedCola."""
