"""A sweep file, read, checked against methods, models and data, and turned into trials."""
