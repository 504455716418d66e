"""MLflow runs, the model registry and the gate's rules."""
