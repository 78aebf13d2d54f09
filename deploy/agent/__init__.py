"""The hospital agent process."""
