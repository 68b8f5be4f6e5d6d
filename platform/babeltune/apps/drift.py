"""Queries beside the training text of the model that answers them: `babeltune check MODEL --queries FILE`."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from babeltune.apps.mining.sentences import read_sentences
from babeltune.data.prepared import read_prepared
from babeltune.errors import DataError, plural
from babeltune.promotion.drift import FEWEST, SAMPLE, Drift, Profile, drifts, read_profile, sample_of, training_sample
from babeltune.promotion.evaluate import weights_of
from babeltune.promotion.model_names import sweep_of, trial_of
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.sync.notify import notify
from babeltune.sweep.sync.view import StorageView


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Files of queries, and how they are read."""

    path: Path
    earlier: Path | None = None  # queries that stand in place of the training text
    column: str | None = None
    codec: str | None = None

    def texts(self, path: Path) -> list[str]:
        """Different texts of a file, at most `SAMPLE`, drawn at random. Raises `DataError` for fewer than `FEWEST`."""
        with TemporaryDirectory() as spill:
            sentences, _ = read_sentences(path, Path(spill) / "text", self.codec, self.column)
            if len(sentences) < FEWEST:
                words = f"{path} has {plural(len(sentences), 'different text')}"
                raise DataError(f"{words}, and drift is looked for in {FEWEST} or more; collect more of them")
            places = np.random.default_rng(0).permutation(len(sentences))[:SAMPLE]
            return [sentences[int(place)] for place in places]


def check_queries(model: str, queries: Queries, cluster: Cluster, *, sweep: str | None = None) -> Drift:
    """The drift of queries against the training text, or against earlier queries.

    The profile of the training text is in a promoted folder. That of a trial, and with `sweep` that of any model, is
    made from the sweep's training text. Whom the cluster file names is notified of drift. Raises `DataError` for files
    that cannot be read, and `SpecError` for a model without known training text."""
    texts = queries.texts(queries.path)
    before = None if queries.earlier is None else queries.texts(queries.earlier)
    view = StorageView(cluster)
    view.update(every=True)
    trial = trial_of(model, view.folder)

    def reference(folder: str) -> Profile:
        if before is not None:
            return sample_of(folder, before, "encoding earlier queries").profile()
        profile = read_profile(Path(folder)) if sweep is None else None
        if profile is not None:
            return profile
        prepared = read_prepared(find_sweep(view.folder, sweep or sweep_of(model, trial, cluster)).prepared)
        view.download_stores(prepared)
        return training_sample(folder, prepared).profile()

    with weights_of(model, trial, view) as (_, folder):
        drift = drifts(reference(folder), sample_of(folder, texts, "encoding queries"))
    if drift.drifted:
        notify(cluster, "drift", model, f"{queries.path} beside {model}: {drift.words(model)}")
    return drift
