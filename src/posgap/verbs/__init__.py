"""What verbs do: one file a verb, and the frame around stages."""
