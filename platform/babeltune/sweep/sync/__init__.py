"""The folder of a sweep and its copy behind a URI, kept in step."""
