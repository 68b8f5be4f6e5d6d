"""What sweep and cluster files say: frozen records, YAML with line numbers, bounds, paths, presets."""
