"""Warm lanes of Ray Train workers, and what they run."""
