"""Sweeps where people already are: tasks for lm-evaluation-harness and for Inspect.

The harness finds its tasks in this folder, whose path `python -m posgap.peers` prints.
"""
