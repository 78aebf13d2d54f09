"""Statistics that hospitals compute together before they train."""
