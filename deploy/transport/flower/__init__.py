"""The same messages through a Flower SuperLink."""
