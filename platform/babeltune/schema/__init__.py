"""The contents of sweep and cluster files: frozen records, YAML with line numbers, bounds, paths, presets."""
