"""What Python users call."""
