"""Proposals and early stops: Ray Tune and Optuna."""
