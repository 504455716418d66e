"""Generating responses: one interface, and a backend for each way to run a model."""
