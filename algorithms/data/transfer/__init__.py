"""Single and paired modalities."""
