"""Checks before a pipeline run: the form, and the prerequisites."""
