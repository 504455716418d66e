"""Examples, placements, prompts and metrics: what is asked, where the evidence stands, and
whether the answer is right."""
