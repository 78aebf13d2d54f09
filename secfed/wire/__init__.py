"""What travels: the layout of a vector, frames, and the transport interface."""
