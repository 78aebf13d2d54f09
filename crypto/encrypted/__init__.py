"""The encrypted protocol: packed BFV sums."""
