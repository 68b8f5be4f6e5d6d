"""Proposals and verdicts: Ray Tune and Optuna."""
