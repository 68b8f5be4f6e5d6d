"""Whether a table that was run anew says the same as the record that is kept. Pure: records in, sentences out."""

import statistics

from benchmarks.tables.definition import Record
from benchmarks.tables.verdict import over_seeds

ROUNDING = 2e-6  # differences of two means that come from the six digits of a record


def _texts(record: Record) -> dict[str, str]:
    """The digests of what was read. How it was stored is another matter, which a new version may change."""
    return {name: digest for name, digest in record["run"]["data"].items() if name != "prepared"}


def disagreements(anew: Record, kept: Record) -> list[str]:
    """What differs by more than the kept record's seeds do; empty if the table was reproduced.

    A row's new mean must lie in Student's 95 % interval of the kept seeds. The text must be the same."""
    found = []
    if _texts(anew) != _texts(kept):
        found.append("the text is not the same: the digests of the data differ")
    before = {row["name"]: row["values"] for row in kept["rows"]}
    after = {row["name"]: row["values"] for row in anew["rows"]}
    if before.keys() != after.keys():
        found.append(f"only one of the two has the rows {', '.join(sorted(before.keys() ^ after.keys()))}")
    for name in before.keys() & after.keys():
        for metric in before[name].keys() & after[name].keys():
            _, low, high = over_seeds(before[name][metric])
            mean = statistics.fmean(after[name][metric])
            if not low - ROUNDING <= mean <= high + ROUNDING:
                found.append(f"{name}, {metric}: {mean:.4f} is not between {low:.4f} and {high:.4f}")
    return sorted(found)
