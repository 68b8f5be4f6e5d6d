"""Reports sweeps and trials to MLflow, and keeps its registry of models."""
