"""Storage behind a URI: a bucket, and the folder on each node that mirrors it."""
