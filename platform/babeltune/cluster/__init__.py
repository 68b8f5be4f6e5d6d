"""Clusters that run already: who may use them, and jobs on them."""
