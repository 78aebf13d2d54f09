"""Data sets, and how a pool of records is dealt out to simulated hospitals."""
