"""The data sets of XTREME's classification and tagging tasks on the Hugging Face hub: overlays of `transfer --with`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from babeltune.apps.transfer.formats import TAGGED, Examples, LabelledRows, Task, collected, label_number
from babeltune.data.arrow_readers import load_dataset
from babeltune.data.file_readers import Fault
from babeltune.data.sources import Refusals
from babeltune.errors import DataError, SpecError, nearest
from babeltune.schema.bounds import inside, not_empty
from babeltune.schema.document import read_document, validate
from babeltune.schema.paths import expand, find_file
from babeltune.schema.records import HubSource, Strict

if TYPE_CHECKING:
    import datasets

ENGLISH = "en"  # the language of training, and its code in overlays
ROOT = "${BABELTUNE_DATA:-.}"  # the folder of a data set that is named as a folder


@dataclass(frozen=True, kw_only=True)
class HubSet(Strict):
    """A task's data set, with a configuration for each language."""

    task: Task
    dataset: str  # the id on the hub, or a folder
    revision: Annotated[str | None, inside] = None  # the commit, tag or branch
    inputs: Annotated[tuple[str, ...], not_empty]  # the columns of the two sentences, or of the words
    label: str  # the column of the label, or of the words' tags
    subsets: dict[str, str]  # the configuration of each language. English is `en`.
    train: str = "train"  # the split of English that trains
    dev: str | None = "validation"  # the split of English by which the best epoch is kept; `null` for none
    test: str = "test"  # the split of each language that is scored

    def splits(self) -> list[str]:
        """The splits that are read."""
        return [split for split in (self.train, self.dev, self.test) if split is not None]

    def described(self, language: str, split: str) -> str:
        """The name of a part of it in the record."""
        return f"{self.dataset} {self.subsets[language]} {split}"


@dataclass(frozen=True, kw_only=True)
class Overlay(Strict):
    """A whole file."""

    transfer: HubSet


def read_overlay(path: str) -> HubSet:
    """The overlay of that file. Raises `SpecError` for wrong keys and values, and for one without English."""
    document = read_document(find_file(path, "overlay"))
    if "transfer" not in document.values:
        raise SpecError(f"{path} has no section `transfer`; name one of search_spaces/transfer, such as xnli.yaml")
    overlay = validate(document, Overlay).transfer
    width = 1 if overlay.task in TAGGED else 2
    if len(overlay.inputs) != width:
        words = f"has {len(overlay.inputs)} columns; {overlay.task} reads {width}: name {'them' if width > 1 else 'it'}"
        raise SpecError(document.error(("transfer", "inputs"), words))
    if ENGLISH not in overlay.subsets:
        raise SpecError(document.error(("transfer", "subsets"), f"lacks {ENGLISH!r}, which trains; add it"))
    return overlay


def read_part(hub_set: HubSet, language: str, split: str, *, drop: bool = False) -> Examples:
    """One language's split. Raises `DataError` as `read_examples` does, and if the data set cannot be had."""
    subset, revision = hub_set.subsets[language], hub_set.revision
    source = HubSource(name=language, dataset=hub_set.dataset, revision=revision, split=split, subset=subset)
    rows = load_dataset(source, Path(expand(ROOT)))
    place = hub_set.described(language, split)
    for column in (*hub_set.inputs, hub_set.label):
        if column not in rows.column_names:
            words = f"columns: {', '.join(rows.column_names)}{nearest(column, rows.column_names)}"
            raise DataError(f"data set {place} has no column {column!r}; {words}")
    content, refusals = hashlib.sha256(), Refusals("--on-error drop", drop)
    return collected(place, _examples(rows, hub_set, place, content, refusals), content, refusals)


def _examples(
    rows: datasets.Dataset, hub_set: HubSet, place: str, content: hashlib._Hash, refusals: Refusals
) -> LabelledRows:
    feature = rows.features[hub_set.label]
    names = list(getattr(getattr(feature, "feature", feature), "names", ()))  # none if the column holds the names
    for number, row in enumerate(rows):
        content.update(json.dumps([row[column] for column in (*hub_set.inputs, hub_set.label)]).encode() + b"\n")
        here, label = f"{place}, row {number}", row[hub_set.label]
        inputs = row[hub_set.inputs[0]] if hub_set.task in TAGGED else [row[column] for column in hub_set.inputs]
        labels = label if hub_set.task in TAGGED else [label]
        if fault := fault_of(inputs, labels, row, tagged=hub_set.task in TAGGED):
            refusals.refuse(here, fault)
            continue
        words = [names[each] if names else str(each) for each in labels]
        yield tuple(inputs), tuple(label_number(word, hub_set.task, here) for word in words)


def fault_of(inputs: Any, labels: Any, row: Mapping[str, object], *, tagged: bool) -> Fault | None:
    """Why a row cannot be used."""
    if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
        return Fault("no text", f"{json.dumps(row, default=str)[:80]}")
    if tagged and not inputs:
        return Fault("no words", "an empty sentence", "unused")
    if not isinstance(labels, list) or len(labels) != (len(inputs) if tagged else 1) or None in labels:
        return Fault("label count", f"{labels!r:.80} for {len(inputs)} words")
    if -1 in labels:
        return Fault("no gold label", "-1, which the hub writes where labels are withheld", "unused")
    return None
