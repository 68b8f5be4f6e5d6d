"""Ours beside the peer, in one process on the same work. `python -m benchmarks.NAME` runs one."""
