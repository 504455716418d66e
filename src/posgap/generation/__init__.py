"""One interface to whatever generates responses."""
