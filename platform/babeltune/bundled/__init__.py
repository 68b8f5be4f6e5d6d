"""Bundled data: a small five-language corpus, graded English pairs, and synthetic templates."""
