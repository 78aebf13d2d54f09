"""FMCSC: multi-view clustering."""
