"""Scoring by a model: a judge says which responses are right, and it is measured how far it can be trusted."""
