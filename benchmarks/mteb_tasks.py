"""mteb's own tasks on the corpora at hand: the reference that our scores are held against, and its time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mteb
from datasets import ClassLabel, Dataset, DatasetDict
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from sentence_transformers import SentenceTransformer

from babeltune.data.prepared import TextTask

BATCH = 32  # mteb's


def mteb_scores(tasks: Sequence[TextTask], model: SentenceTransformer) -> dict[str, float]:
    """The scores of a model on mteb's tasks, by our names `test/TASK/SUBSET/METRIC`."""
    return run(as_mteb(tasks), model)


def run(tasks: dict[str, Any], model: SentenceTransformer) -> dict[str, float]:
    """The scores of mteb's tasks."""
    wrapped = SentenceTransformerEncoderWrapper(model)
    scores: dict[str, float] = {}
    for name, task in tasks.items():
        results = task.evaluate(wrapped, "test", encode_kwargs={"batch_size": BATCH, "show_progress_bar": False})
        for subset, values in results.items():
            scores |= _by_our_names(task, name, subset, values)
    return scores


def as_mteb(tasks: Sequence[TextTask]) -> dict[str, Any]:
    """mteb's tasks with our text, by our tasks' names: NTREX, Tatoeba, STS, and SIB-200's two."""
    kinds: dict[str, list[TextTask]] = defaultdict(list)
    for task in tasks:
        kinds[task.name].append(task)
    make = {"ntrex": _multiway, "tatoeba": _bitext, "stsb": _sts, "sib": _clustering, "sib_head": _head}
    return {name: make[name](group) for name, group in kinds.items()}


def _multiway(tasks: Sequence[TextTask]) -> Any:
    """NTREX: a column for each language, and both directions of each pair, as mteb's task has them."""
    columns: dict[str, Sequence[str]] = {}
    ours: dict[str, tuple[str, str]] = {}
    for task in tasks:
        left, right = (languages[0].replace("-", "_") for languages in (task.left_languages, task.right_languages))
        columns |= {left: task.left, right: task.right}
        ours |= {f"{left}-{right}": (task.subset, "forward"), f"{right}-{left}": (task.subset, "backward")}
    ntrex = _filled("NTREXBitextMining", _split(**columns), list(ours))
    ntrex.ours = ours
    return ntrex


def _bitext(tasks: Sequence[TextTask]) -> Any:
    return _filled("Tatoeba", {task.subset: _split(sentence1=task.left, sentence2=task.right) for task in tasks})


def _sts(tasks: Sequence[TextTask]) -> Any:
    (task,) = tasks
    return _filled("STSBenchmark", _split(sentence1=task.left, sentence2=task.right, score=task.scores), ["default"])


def _clustering(tasks: Sequence[TextTask]) -> Any:
    subsets = {task.subset: _split(sentences=task.left, labels=_numbers(task.labels)) for task in tasks}
    return _filled("SIB200ClusteringS2S", subsets)


def _head(tasks: Sequence[TextTask]) -> Any:
    subsets = {task.subset: DatasetDict(train=_labelled(task.fit), test=_labelled(task)) for task in tasks}
    return _filled("SIB200Classification", subsets)


def _filled(name: str, data: dict[str, Any], subsets: Sequence[str] = ()) -> Any:
    task = mteb.get_task(name)
    task.dataset, task.hf_subsets, task.data_loaded = data, list(subsets or data), True
    return task


def _split(**columns: Any) -> DatasetDict:
    return DatasetDict(test=Dataset.from_dict({name: list(values) for name, values in columns.items()}))


def _labelled(task: Any) -> Dataset:
    data = Dataset.from_dict({"text": list(task.left), "label": list(task.labels)})
    return data.cast_column("label", ClassLabel(names=sorted(set(task.labels))))


def _numbers(labels: Sequence[str]) -> list[int]:
    names = sorted(set(labels))
    return [names.index(label) for label in labels]


def _by_our_names(task: Any, name: str, subset: str, values: dict[str, Any]) -> dict[str, float]:
    """Our names for mteb's: its one direction is our `forward`, and the same two languages turned our `backward`."""
    if name in ("ntrex", "tatoeba"):
        subset, direction = getattr(task, "ours", {}).get(subset, (subset, "forward"))
        scores = {f"accuracy_{direction}": values["accuracy"]}
        if direction == "forward":
            scores["f1"] = values["f1"]
    elif name == "stsb":
        subset, scores = "eng", {metric: values[f"cosine_{metric}"] for metric in ("spearman", "pearson")}
    else:
        metric = "v_measure" if name == "sib" else "accuracy"
        scores = {metric: values[metric]}
    return {f"test/{name}/{subset}/{metric}": value for metric, value in scores.items()}
