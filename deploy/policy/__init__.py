"""What a hospital permits."""
