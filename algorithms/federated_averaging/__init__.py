"""FedAvg and FedProx."""
