"""Distributionally robust weights of sites."""
