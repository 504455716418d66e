"""What can be typed: one file a verb, and what several share."""
