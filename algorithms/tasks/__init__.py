"""What models are trained for: losses, sizes of outputs, and metrics from sums."""
