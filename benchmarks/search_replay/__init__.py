"""Samplers and schedulers replayed over recorded training: `python -m benchmarks.search_replay`.

`record.py` trains random settings of static students on three corpora and keeps each report. A replay then searches
among them in seconds, with the platform's own proposals and scheduler."""
