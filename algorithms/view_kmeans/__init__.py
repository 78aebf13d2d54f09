"""k-means on concatenated views, as a comparison."""
