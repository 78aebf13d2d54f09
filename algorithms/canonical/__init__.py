"""Canonical clustering: what several views of a record have in common, from securely summed moments."""
