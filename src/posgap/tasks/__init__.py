"""Examples, placements, prompts and metrics: questions, the places of their evidence, and scores of answers."""
