"""Records of several views."""
