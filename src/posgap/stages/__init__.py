"""The stages, in the order of the pipeline: validate, teacher, distill or scale,
sweep, gate, promote.

Each is a function of its config; none imports another.
"""
