"""Each sweep of a paper, and each overlay for one, is planned from a small saved copy of what it takes from the hub."""

import csv
import random
import re
import shlex
from pathlib import Path

import pytest

from babeltune.planning.availability import encoders, sources, tasks
from babeltune.planning.parameters import values_of
from babeltune.planning.plan import make_plan
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import HubSource, Sts, TranslateSource
from small_models import exported_student

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "offline")]
ROOT = Path(__file__).parents[2]
PLACES = ("papers", "pairs", "baselines", "teachers")
WORDS = [*"abcdefghijklmnopqrstuvwx"]
ROWS = 120
SMALL = ("data.split.pairs=4", "data.words.stop_words=0", 'data.clean.language="off"')
"""Rows and words are few, so that few can be held out or left out. They are of no language."""


def commands():
    """The first command at the head of each file that takes anything from the hub, by the file's name."""
    for place in PLACES:
        for path in sorted((ROOT / "search_spaces" / place).glob("*.yaml")):
            line = re.search(r"^#   babeltune submit (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert line is not None, path
            file, *options = shlex.split(line.group(1))
            overlays = options[1::2] if set(options[::2]) == {"--with"} else []
            if "/papers/" in file:
                yield pytest.param(file, overlays, id=path.stem)


def row(language, number, of=""):
    """A sentence of a data set, whose words are the same in every language, but for their last letters."""
    drawn = random.Random(f"{of} {number}").sample(WORDS, 7)
    return " ".join(f"{word}{language[:2]}" for word in drawn) + f" {number}"


def values_of_source(source, task):
    """The columns of a data set, by their names there."""
    if isinstance(task, Sts):
        return {
            **{
                name: [row(f"s{name[-1]}", number, source.name) for number in range(ROWS)]
                for name in ("sentence1", "sentence2")
            },
            "score": [float(number % 6) for number in range(ROWS)],
        }
    columns = {}
    for language, name in source.columns.items():
        outer, _, inner = name.partition(".")
        texts = [row(language, number, f"{source.dataset} {source.split}") for number in range(ROWS)]
        if inner:
            columns[outer] = [{**a, inner: b} for a, b in zip(columns.get(outer, [{}] * ROWS), texts, strict=True)]
        else:
            columns[outer] = texts
    return columns


def save(folder, source, task, datasets):
    """Writes a data set as the hub has it: a file that the pattern finds, or one that the card names."""
    subset = source.subset or ""
    file = re.sub(r"\*+", "some", subset) if "/" in subset else f"{subset or 'data'}/{source.split}.parquet"
    place = folder / source.dataset / file
    place.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(values_of_source(source, task)).to_parquet(place)
    if "/" not in subset:
        card = folder / source.dataset / "README.md"
        entry = f"- config_name: {subset or 'default'}\n  data_files:\n  - split: {source.split}\n    path: {file}\n"
        head = card.read_text(encoding="utf-8").removesuffix("---\n") if card.exists() else "---\nconfigs:\n"
        card.write_text(f"{head}{entry}---\n", encoding="utf-8")


def save_files(folder, source, label):
    """Files of text that no hub has."""
    for language, path in (source.paths or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened, delimiter="\t")
            writer.writerow(["id", source.column, *label])
            writer.writerows(
                [number, row(language, number), *([f"topic {number % 2}"] if label else [])] for number in range(ROWS)
            )


def names_of_models(sweep):
    """Every model that the sweep takes from the hub."""
    searched = sweep.parameters.get("student.model")
    yield from (sweep.student.model, *(values_of(searched, 0) if searched else ()), *sweep.baselines)
    yield from (encoder.model for _, encoder in encoders(sweep))
    yield from (source.translation.model for _, source in sources(sweep) if isinstance(source, TranslateSource))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    texts = [row(language, number) for language in ("en", "ru") for number in range(ROWS)]
    return exported_student(tmp_path_factory.mktemp("model"), texts, 600, pooling="mean", max_tokens=512)


@pytest.mark.parametrize(("file", "overlays"), commands())
def test_a_papers_sweep_is_planned_from_a_small_saved_copy(file, overlays, model, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    hub = read_sweep(ROOT / file, overlays=[ROOT / overlay for overlay in overlays])
    for name in {name for name in names_of_models(hub) if name and not name.startswith("bundled:")}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(model)
    of_task = {id(source): task for _, task in tasks(hub) for _, source in task.sources()}
    for _, source in sources(hub):
        task = of_task.get(id(source))
        if isinstance(source, HubSource):
            save(tmp_path, source, task, datasets)
        elif not isinstance(source, TranslateSource):
            save_files(tmp_path, source, [task.label] if hasattr(task, "label") else [])
    changes = [f"data.root={tmp_path}", *SMALL]
    sweep = read_sweep(ROOT / file, overlays=[ROOT / overlay for overlay in overlays], assignments=changes)
    trained = [source.name for source in sweep.data.train if source.train]
    counts = make_plan(sweep, samples=1).counts
    assert counts.keys() >= set(trained)
    assert all(counts[name] for name in trained)
