"""Ours beside the peer, in one process on the same work. `python -m benchmarks.NAME` runs one.

`python -m benchmarks` runs all and ends with one table."""
