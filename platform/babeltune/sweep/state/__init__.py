"""The records in the folder of a sweep: trials, leaderboard, lease, progress, provenance."""
