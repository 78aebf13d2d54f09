"""Differentially private training at the site. Imports the rest of dp."""
