"""Warm worker groups of Ray Train, and what they run."""
