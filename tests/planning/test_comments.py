"""Comments of the sweep files name keys, metrics, data sets and files that exist."""

import dataclasses
import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest

from babeltune.evaluation.metric_names import FACTS, METRICS, POOLED
from babeltune.schema import records, search, text
from babeltune.schema.base import fields_of

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "search_spaces").rglob("*.yaml"))
SECTIONS = {
    "training": records.Training,
    "student": records.Student,
    "teacher": records.Teacher,
    "data": records.Data,
    "budget": search.Budget,
    "sampler": search.Sampler,
    "scheduler": search.Scheduler,
}
SCORES = {*FACTS, *POOLED.values(), "recall_at_100", *(name for names in METRICS.values() for name in names)}
METRIC = re.compile(r"\b(?:dim\d+/)?(?:dev|test)/([\w-]+)(?:/[\w-]+)?/(\w+)")
DOTTED = re.compile(rf"\b({'|'.join(SECTIONS)})\.([a-z_]+)\b(?!\.)")
QUOTED = re.compile(r"`([a-z][a-z_]*)(?:: [^`]+)?`")
NAMED = re.compile(r"[\w/]+\.yaml\b")


def fields(module):
    classes = (each for _, each in inspect.getmembers(module, dataclasses.is_dataclass))
    return {field.name for each in classes for field in dataclasses.fields(each)}


def words():
    """All that a comment may put in quotes: keys, settings and names of methods, kinds of tasks, scores, commands."""
    found = {*METRICS, *SCORES, "plan"}.union(*map(fields, (records, search, text)))
    for entry in importlib.metadata.entry_points(group="babeltune.methods"):
        found |= {entry.name, *(field.name for field in dataclasses.fields(entry.load().Config))}
    return found


WORDS = words()


def wrong_names(path):
    """What the file's comments name and is not there."""
    whole = path.read_text(encoding="utf-8")
    comments = "\n".join(line.partition("#")[2] for line in whole.splitlines() if "#" in line)
    sets = {"heldout", *re.findall(r"\b(?:name|group): ([\w-]+)", whole)}
    for name, score in METRIC.findall(comments):
        yield from (each for each, known in ((name, sets), (score, SCORES)) if each not in known)
    for section, key in DOTTED.findall(comments):
        if key != "yaml" and key not in fields_of(SECTIONS[section]):
            yield f"{section}.{key}"
    yield from (word for word in QUOTED.findall(comments) if word not in WORDS | sets)
    for named in NAMED.findall(comments):
        if not (ROOT / named).is_file() and not any(str(each).endswith(f"/{named}") for each in FILES):
            yield named


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "search_spaces")))
def test_comments_of_sweep_files_name_what_exists(path):
    assert list(wrong_names(path)) == []


def test_wrong_names_in_comments_are_found(tmp_path):
    wrong = "# `dev/tatoba/accuracy` `dev/news/f3` training.pears `rihgt_model: teacher` papers/none.yaml\n"
    (tmp_path / "a.yaml").write_text(f"{wrong}name: news\n", encoding="utf-8")
    named = ["tatoba", "f3", "training.pears", "rihgt_model", "papers/none.yaml"]
    assert list(wrong_names(tmp_path / "a.yaml")) == named
