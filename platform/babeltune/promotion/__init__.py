"""From the best checkpoint to a registered sentence-transformers model."""
