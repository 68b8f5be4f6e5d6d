"""Registers a model under an alias, as a promotion does."""

from babeltune.tracking import registry


def register(uri, name, folder, run_id, alias, tags, *, replaces):
    """The new version, to which the alias moves from the version `replaces`."""
    version = registry.register(uri, name, folder, run_id, tags)
    registry.move_alias(uri, name, alias, version, replaces=replaces)
    return version
