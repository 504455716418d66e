"""Remedies against position bias that need no training: each is one registered object, in a file of its own."""
