"""Vectors over HTTP: one ASGI app, which `babeltune serve` runs under uvicorn and a cluster under Ray Serve."""
