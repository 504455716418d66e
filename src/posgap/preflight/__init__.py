"""What a pipeline run is given, and whether it can start: the form and the prerequisites."""
