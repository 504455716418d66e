"""The work of verbs: one file a verb, and the frame around stages."""
