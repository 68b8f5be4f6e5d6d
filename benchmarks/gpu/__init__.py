"""Benchmarks of a GPU: `python -m benchmarks.gpu`."""
