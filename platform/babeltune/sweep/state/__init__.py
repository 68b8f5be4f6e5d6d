"""What a sweep keeps in its folder: trials, leaderboard, lease, progress, provenance."""
