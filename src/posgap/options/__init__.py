"""Options of verbs: one file a verb, and the shared ones."""
