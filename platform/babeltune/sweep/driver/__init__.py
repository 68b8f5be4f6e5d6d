"""The process that runs a sweep, and what it records."""
