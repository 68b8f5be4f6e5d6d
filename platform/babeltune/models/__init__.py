"""Students: where their files are, their shapes, and how they run without padding."""
