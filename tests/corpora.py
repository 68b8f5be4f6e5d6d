"""Where the real corpora are, for the tests that read them; without them these are skipped."""

import csv
import gzip
import os
from importlib import resources
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = Path(os.environ.get("BABELTUNE_DATA") or BESIDE)
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no corpora in {DATA}; set BABELTUNE_DATA")


def bundled(count, *languages, name="natural_train"):
    """Language -> the first texts of a bundled table."""
    file = resources.files("babeltune.bundled").joinpath(f"{name}.tsv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(file.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[:count]
    return {language: [row[language] for row in rows] for language in languages}


def read_tasks(tasks, root, data):
    """The subsets of dev or test sets, in texts."""
    from babeltune.data.eval_sets import read_eval, subsets

    return subsets(read_eval(tasks, root, data.max_line_bytes), data.anchor_priority)


def sib200(language):
    """Unit vectors of SIB-200's texts, counts of their words by hash, with topics and splits."""
    from sklearn.feature_extraction.text import HashingVectorizer

    with gzip.open(DATA / "sib200" / f"{language}.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    vectors = HashingVectorizer(n_features=64).transform(row["text"] for row in rows).toarray()
    return vectors.astype("float32"), [row["category"] for row in rows], [row["sib_split"] for row in rows]
