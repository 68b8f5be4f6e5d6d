"""Sweeps: the search, warm lanes, and what a sweep leaves on disk."""
