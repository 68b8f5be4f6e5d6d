"""Scores a table's trials on the sealed sets, item by item, in one fresh process. Each opening is recorded.

The scores of a trial are kept in the storage, so a table that goes on opens no set for it again."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from babeltune.data.eval_sets import EvalRows, subsets
from babeltune.data.prepared import TextTask
from babeltune.files import plain, write_json
from babeltune.promotion.candidate import Candidate, export_model, exported, find_candidate, sealed_tests, target_of
from babeltune.promotion.fresh_scorer import FreshScorer, Target
from babeltune.promotion.model_names import model_folder
from babeltune.promotion.sealed_test_log import record_opening
from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.view import StorageView
from benchmarks.tables.definition import MEGABYTES, UNTRAINED
from benchmarks.tables.sampling import Scored, cluster_outcomes, subsets_of


def megabytes(folder: Path) -> float:
    """The size of all files in it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


class SealedSets:
    """The sealed sets of one data section, which all trials of a table share."""

    def __init__(self, trial: str, cluster: Cluster) -> None:
        """`trial` is any of the table's, such as `SWEEP/t0003`."""
        self.view = StorageView(cluster)
        self.untrained = f"{trial}-{UNTRAINED}"
        self.first: Candidate = find_candidate(trial, self.view.folder)
        self.rows: list[EvalRows] = sealed_tests(self.first)
        priority = self.first.sweep.data.anchor_priority
        self.tasks: list[TextTask] = subsets(self.rows, priority)
        self.target: Target | None = target_of(self.first, "test")
        if self.target is not None and self.target.model.startswith("models:/"):
            self.target = replace(self.target, model=model_folder(self.target.model, cluster))

    def score(self, trials: Sequence[str]) -> Iterator[tuple[str, Scored]]:
        """Each of these trials, and `untrained`, in their order."""
        left = [name for name in trials if not self._score_file(name).exists()]
        with FreshScorer() as rescore:
            for batch in [left] if self.target and left else [[name] for name in left]:
                for name, scored in self._open(batch, rescore).items():
                    self._score_file(name).parent.mkdir(parents=True, exist_ok=True)
                    write_json(self._score_file(name), plain(scored))
        for name in trials:
            yield name, Scored(**json.loads(self._score_file(name).read_text(encoding="utf-8")))

    def _score_file(self, name: str) -> Path:
        return self.view.folder / "tables" / f"{name}.json"

    def items(self, metric: str) -> int:
        """The rows that a metric is a mean over."""
        return sum(len(task.left) for task in subsets_of(metric, self.tasks))

    def _open(self, names: Sequence[str], rescore: FreshScorer) -> dict[str, Scored]:
        """Scores these models in one request, in which a teacher encodes its side once."""
        with ExitStack() as models, self.view.openings():
            folders = {name: str(models.enter_context(self._model(name))) for name in names}
            for name, folder in folders.items():
                record_opening(self.view.folder, name, folder, self.rows)
            scored = rescore.scored(folders, self.tasks, "test", target=self.target)
            sizes = {name: {MEGABYTES: megabytes(Path(folder))} for name, folder in folders.items()}
            clusters = {name: cluster_outcomes(folder, self.tasks) for name, folder in folders.items()}
        return {name: Scored(scores | sizes[name], items | clusters[name]) for name, (scores, items) in scored.items()}

    @contextmanager
    def _model(self, name: str) -> Iterator[Path]:
        if name == self.untrained:
            with TemporaryDirectory() as draft:
                export_model(self.first, Path(draft) / "model", untrained=True)
                yield Path(draft) / "model"
        else:
            with exported(
                find_candidate(name, self.view.folder), self.view, self.view.folder / "evaluations"
            ) as folder:
                yield folder
