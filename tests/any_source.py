"""A source of any format."""

from babeltune.schema.base import record_of
from babeltune.schema.records import Source


def any_source(**values: object) -> Source:
    """The record of the format among these values, TSV if there is none. Raises `TypeError` for what it has not."""
    return record_of(Source, {"format": "tsv", **values})(**values)
