"""Metrics that leave a site only as numerators and denominators to be summed."""
