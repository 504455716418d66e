"""`posgap demo`: takes a tiny model that gets lost in the middle through the whole pipeline."""
