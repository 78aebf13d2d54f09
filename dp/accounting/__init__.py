"""Privacy events and the accountants that bound them. Imports nothing of dp."""
