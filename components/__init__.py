"""KFP components, one folder a stage: a thin wrapper over the stage's function and its metadata."""
