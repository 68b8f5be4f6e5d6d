"""The report of a sweep: one file that says which trial to take, and why."""
