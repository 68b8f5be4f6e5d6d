"""A running sweep: its folder, its copy in an object store, its workers, its search, its driver."""
