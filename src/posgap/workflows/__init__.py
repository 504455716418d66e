"""What runs several stages."""
