"""What a GPU does: `python -m benchmarks.gpu`."""
