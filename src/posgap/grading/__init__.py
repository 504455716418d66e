"""Scoring by a model: a judge says which responses are right."""
