"""A sweep's folder, here and on other machines."""
