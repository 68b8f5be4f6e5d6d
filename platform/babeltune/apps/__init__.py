"""Tools on a promoted model."""
