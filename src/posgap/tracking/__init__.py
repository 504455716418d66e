"""MLflow: runs, and the model registry."""
