"""Warns of dev and test sets that a model was trained on, as far as this storage knows its training text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from babeltune.data.contamination import CONTAMINATED
from babeltune.data.prepared import Prepared, TextTask, read_prepared
from babeltune.data.text_keys import sentence_keys
from babeltune.errors import BabeltuneError
from babeltune.promotion.candidate import Candidate
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.mlflow_client import SWEEP


def trained_on(
    model: str, trial: Candidate | None, tasks: Sequence[TextTask], view: StorageView, folder: str
) -> Iterator[str]:
    """A warning for each set where more than `CONTAMINATED` of the texts are training text of the model.

    That text is known of a trial, and of a registered model whose sweep is in this storage. Texts that differ in case,
    punctuation and blanks only are equal."""
    prepared = trial.prepared if trial is not None else _of_registered(view, Path(folder))
    if prepared is None:
        return
    keys = np.unique(sentence_keys(prepared.all_texts().at(np.unique(np.asarray(prepared.pairs())))))
    texts: dict[str, set[str]] = {}
    for task in tasks:
        texts.setdefault(task.name, set()).update(task.texts())
    for name, some in texts.items():
        share = float(np.isin(sentence_keys(sorted(some)), keys).mean()) if some else 0.0
        if share > CONTAMINATED:
            yield (
                f"{name}: {share:.0%} of its {len(some):,} texts are training text of {model}, so its scores say "
                "little about other text; score a set that was held out"
            )


def _of_registered(view: StorageView, folder: Path) -> Prepared | None:
    """The data of a registered model's sweep; None if the folder is of no such model or its sweep is not here."""
    if not folder.is_relative_to(view.folder / "fetched"):
        return None  # the registry's models are nowhere else
    from babeltune.tracking.registry import version_in

    try:
        version = version_in(view.cluster.mlflow, folder)
        if version is None or not (sweep := version.tags.get(SWEEP)):
            return None
        prepared = read_prepared(find_sweep(view.folder, sweep).prepared)
        view.download_stores(prepared)
        return prepared
    except BabeltuneError:  # a registry or a storage that is away: nothing is known
        return None
