"""A new model whose vectors fit the index of an old one: `babeltune adapter OLD NEW --out FOLDER`.

A linear map turns the new model's vectors towards the old ones of the same texts. It is fitted on the training text of
a sweep. The sweep's bitext dev sets say what it costs: how often a query finds its translation in the old index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from babeltune.data.prepared import TextTask, read_prepared
from babeltune.errors import SpecError
from babeltune.evaluation.projection import unit_rows
from babeltune.files import draft_folder
from babeltune.models.hub import check_files, open_model
from babeltune.promotion.canary import CANARY, SPACE, canary_by, in_language, write_canary
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.evaluate import weights_of
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.inherited_card import inherited
from babeltune.promotion.model_files import check_free, write_folder
from babeltune.promotion.model_names import sweep_of, trial_of
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.sync.view import StorageView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.evaluation.evaluate import EncodeTexts

    Vectors = NDArray[np.float32]

FITTED = 20_000  # training texts, at most, that the map is fitted on
HELD_OUT = 0.1  # the share of them that chooses among the maps
RIDGES = (1e-3, 1e-2, 1e-1)  # penalties of least squares: few texts and dependent numbers need a larger one
NEIGHBOURS = 10  # texts of the index among which a query's translation counts as found
ROWS = 1_000  # queries that are compared with the index at once


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A new model in an old model's space, and what its queries find in the old index."""

    folder: str | None
    """The new folder; None if queries find too little."""
    sweep: str
    map: str
    """`rotation` or `least squares`: the one that is better on texts that it was not fitted on."""
    index: int
    """Texts in the index."""
    recalls: dict[str, tuple[float, float]]
    """Recall@10 of each `task/subset`: of the old model's queries, and of the new one's."""

    share: float
    """The share of the old model's mean recall that the new one has."""


def make_adapter(
    old: str, new: str, out: Path, cluster: Cluster, *, sweep: str | None = None, least: float = 0.95
) -> Adapted:
    """Writes the new model with a linear layer after it, if its queries keep `least` of the old recall.

    The sweep is by default the one that made `new`. Raises `SpecError` if none is known, if it has no bitext dev set,
    and if `out` is there."""
    check_free(out)
    view = StorageView(cluster)
    view.update(every=True)
    trials = [trial_of(model, view.folder) for model in (old, new)]
    sweep = sweep_of(new, trials[1], cluster) if sweep is None else find_sweep(view.folder, sweep).id
    prepared = read_prepared(find_sweep(view.folder, sweep).prepared)
    view.download_stores(prepared)
    tasks = [task for task in dev_texts(prepared) if task.kind == "bitext" and task.right_model == "student"]
    if not tasks:
        raise SpecError(f"sweep {sweep} has no bitext dev set, and an adapter is judged by one; name another: --sweep")
    (first, second), drafts = trials, draft_folder("adapter", view.folder / "evaluations")
    with weights_of(old, first, view) as (_, before), weights_of(new, second, view) as (_, after), drafts as draft:
        check_files(Path(after), repr(new))  # a layer is put after it, so it has to be whole
        encode_old = encoder_of(before, stage="encoding with the old model")
        encode_new = encoder_of(after, stage="encoding with the new model")
        ids = prepared.some_trained(FITTED)
        texts, languages = prepared.texts_of(ids), [prepared.languages[each] for each in prepared.text_languages()[ids]]
        layer = fit_map(unit_rows(encode_new(texts, languages)), unit_rows(encode_old(texts, languages)))
        adapted = str(draft / "model")
        _write(after, layer, adapted)
        encode_adapted = encoder_of(adapted, stage="encoding with both")
        index, recalls = _recalls(tasks, encode_old, encode_adapted)
        expected, recall = np.mean(list(recalls.values()), axis=0)
        share = float(recall / expected) if expected else 0.0
        done = Adapted(folder=str(out), sweep=sweep, map=layer.kind, index=index, recalls=recalls, share=share)
        if done.share < least:
            return replace(done, folder=None)
        for file, encode in ((SPACE, encode_old), (CANARY, encode_adapted)):
            write_canary(canary_by(in_language(encode)), draft / "model" / file)
        card = inherited(Path(after), _card(done, old, new), loads=True)
        (draft / "model" / "README.md").write_text(card, encoding="utf-8")
        write_folder(partial(copytree, adapted, dirs_exist_ok=True), out)
    return done


class LinearMap(NamedTuple):
    """From new vectors [texts, m] to an old model's [texts, n]."""

    kind: str
    weight: Vectors  # [m, n]
    bias: Vectors  # [n]

    def of(self, vectors: Vectors) -> Vectors:
        """The vectors in the old space, of any length."""
        return vectors @ self.weight + self.bias


def fit_map(new: Vectors, old: Vectors) -> LinearMap:
    """The map that finds most of the old vectors of texts that it was not fitted on, and of equal ones the nearest.

    Each takes one mean to the other. A rotation keeps distances (the orthogonal Procrustes problem, Schönemann 1966).
    Least squares need not; their penalties are `RIDGES` times the mean variance of the new numbers."""
    some = max(1, round(HELD_OUT * len(new)))
    means = new[some:].mean(axis=0), old[some:].mean(axis=0)
    x, y = new[some:] - means[0], old[some:] - means[1]
    gram, product = x.T @ x, x.T @ y
    left, _, right = np.linalg.svd(product, full_matrices=False)
    scale = (np.trace(gram) / len(gram) + np.finfo(np.float32).tiny) * np.eye(len(gram), dtype=gram.dtype)
    weights = [("rotation", left @ right)]
    weights += [("least squares", np.linalg.solve(gram + ridge * scale, product)) for ridge in RIDGES]
    maps = [LinearMap(kind, weight, means[1] - means[0] @ weight) for kind, weight in weights]

    def quality(each: LinearMap) -> tuple[float, float]:
        cosines = unit_rows(each.of(new[:some])) @ old[:some].T
        return float(np.mean(cosines.argmax(axis=1) == np.arange(some))), float(np.trace(cosines))

    return max(maps, key=quality)


def _write(new: str, layer: LinearMap, folder: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize

    whole = open_model(new)
    dense = Dense(
        *layer.weight.shape,
        activation_function=torch.nn.Identity(),
        init_weight=torch.tensor(layer.weight.T.copy()),
        init_bias=torch.tensor(layer.bias),
    )
    prompts = {"prompts": whole.prompts, "default_prompt_name": whole.default_prompt_name}
    model = SentenceTransformer(modules=[*whole, dense, Normalize()], **prompts)
    model.save(folder, create_model_card=False)


def _recalls(
    tasks: Sequence[TextTask], index_by: EncodeTexts, query_by: EncodeTexts
) -> tuple[int, dict[str, tuple[float, float]]]:
    """How many texts the old index holds, and for each subset how often both models' queries find a translation."""
    places: dict[tuple[str, str], int] = {}
    sides = {}
    for task in tasks:
        numbered = task.mapped(lambda text, language: places.setdefault((text, language), len(places)))
        sides[f"{task.name}/{task.subset}"] = np.array([numbered.left, numbered.right[: len(numbered.left)]])
    texts, languages = [text for text, _ in places], [language for _, language in places]
    index, queries = unit_rows(index_by(texts, languages)), unit_rows(query_by(texts, languages))
    sides = {name: both for name, both in sides.items() if both.size}
    return len(places), {
        name: (_recall(index, index, both), _recall(queries, index, both)) for name, both in sides.items()
    }


def _recall(queries: Vectors, index: Vectors, both: NDArray[np.int64]) -> float:
    """The share of queries, in both directions, that find their translation; a text does not find itself."""
    query_rows, gold = np.concatenate([both, both[::-1]], axis=1)
    hits = 0
    for first in range(0, len(query_rows), ROWS):
        rows, answers = query_rows[first : first + ROWS], gold[first : first + ROWS]
        cosines = queries[rows] @ index.T
        threshold = cosines[np.arange(len(rows)), answers].copy()
        cosines[np.arange(len(rows)), rows] = -np.inf
        hits += int(((cosines > threshold[:, None]).sum(axis=1) < NEIGHBOURS).sum())
    return hits / len(query_rows)


def _card(done: Adapted, old: str, new: str) -> str:
    rows = "\n".join(f"| {name} | {before:.4f} | {after:.4f} |" for name, (before, after) in done.recalls.items())
    return f"""# {Path(new).name} for an index of {Path(old).name}

Encode queries with this model, and search the vectors of `{old}` (`space.json` has some of them).
It is `{new}` with a linear layer ({done.map}).
Recall@{NEIGHBOURS} of translations among {done.index:,} texts of {done.sweep}'s dev sets, {done.share:.1%} of before:

| set | queries of the old model | of this model |
|---|---|---|
{rows}
"""
