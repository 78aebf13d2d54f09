"""What an algorithm is: its interface, setting and shared state."""
