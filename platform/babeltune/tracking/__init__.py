"""What happens, told to MLflow; its registry of models."""
