"""Distributionally robust weights of sites.

Imports the framework.
"""
