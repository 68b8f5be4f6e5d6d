"""The overlays of search_spaces/transfer, each read from a small copy that is laid out as the hub's data set."""

import json
import sys

import pytest

from babeltune.apps.transfer.formats import LABELS, UPOS
from babeltune.apps.transfer.hub_sets import read_overlay, read_part
from babeltune.cli import main
from babeltune.errors import DataError, SpecError
from babeltune.planning.sweep_file import read_sweep
from small_models import exported_student

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
datasets = pytest.importorskip("datasets")
NLI = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
SAME = datasets.ClassLabel(names=["0", "1"])
TEXT = datasets.Value("string")
NAMES = datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"])
"""As the cards of the hub have them: entailment is 0 there, and 1 in XTREME's files."""
LAYOUTS = {
    "xnli": ({"premise": TEXT, "hypothesis": TEXT, "label": NLI}, [["a cat", "a dog", 2], ["a cat", "a cat", 0]]),
    "pawsx": (
        {"id": datasets.Value("int32"), "sentence1": TEXT, "sentence2": TEXT, "label": SAME},
        [[1, "cat sat", "sat cat", 0], [2, "dog", "dog", 1]],
    ),
    "pos": (
        {"tokens": datasets.List(TEXT), "pos_tags": datasets.List(datasets.ClassLabel(names=UPOS.split()))},
        [[["the", "cat", "sat"], [5, 7, 15]], [["cat"], [7]]],
    ),
    "ner": (
        {"tokens": datasets.List(TEXT), "ner_tags": datasets.List(NAMES), "langs": datasets.List(TEXT)},
        [[["dog", "cat", "ran"], [1, 2, 0], ["en", "en", "en"]], [["ran"], [0], ["en"]]],
    ),
}
FOUND = {
    "xnli": ([("a cat", "a dog"), ("a cat", "a cat")], [["contradiction"], ["entailment"]]),
    "pawsx": ([("cat sat", "sat cat"), ("dog", "dog")], [["0"], ["1"]]),
    "pos": ([("the", "cat", "sat"), ("cat",)], [["DET", "NOUN", "VERB"], ["NOUN"]]),
    "ner": ([("dog", "cat", "ran"), ("ran",)], [["B-PER", "I-PER", "O"], ["O"]]),
}
LANGUAGES = {"xnli": 15, "pawsx": 7, "pos": 33, "ner": 40}


def overlay_of(task):
    return read_overlay(f"search_spaces/transfer/{task}.yaml")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Writes a data set as the hub has it: a card, and Parquet files of each split in a folder for each language."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("BABELTUNE_DATA", str(tmp_path))

    def write(task, rows=None, features=None, languages=("en", "fr"), splits=("train",)):
        overlay = overlay_of(task)
        columns, default_rows = LAYOUTS[task]
        columns, card = features or columns, ["---", "configs:"]
        for subset in (overlay.subsets[language] for language in languages):
            card += [f"- config_name: {subset}", "  data_files:"]
            for split in splits:
                file = tmp_path / overlay.dataset / subset / f"{split}-00000-of-00001.parquet"
                file.parent.mkdir(parents=True, exist_ok=True)
                values = {name: [row[place] for row in rows or default_rows] for place, name in enumerate(columns)}
                datasets.Dataset.from_dict(values, features=datasets.Features(columns)).to_parquet(file)
                card += [f"  - split: {split}", f"    path: {subset}/{split}-*"]
        (tmp_path / overlay.dataset / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
        return overlay

    return write


@pytest.mark.parametrize("task", LAYOUTS)
def test_an_overlay_reads_the_hubs_layout_in_every_language(copy, task):
    overlay = overlay_of(task)
    *_, last = overlay.subsets
    copy(task, languages=("en", last), splits=overlay.splits())
    assert len(overlay.subsets) == LANGUAGES[task]
    inputs, labels = FOUND[task]
    for language, split in (("en", "train"), ("en", "validation"), (last, "test")):
        part = read_part(overlay, language, split)
        assert part.inputs == inputs
        assert [[LABELS[task][number] for number in row] for row in part.labels] == labels


def test_the_languages_are_xtremes():
    """Hu et al. 2020, table 1: POS has 33 languages, NER has 40 and all of POS' but none besides."""
    pos, ner = set(overlay_of("pos").subsets), set(overlay_of("ner").subsets)
    assert pos < ner
    assert ner - pos == {"bn", "jv", "ka", "ml", "ms", "my", "sw"}


def test_an_overlay_of_transfer_is_no_sweep_file():
    for name in ("xnli", "ner"):
        with pytest.raises(SpecError, match=r"data set of `babeltune transfer MODEL --with .*`, not a sweep file"):
            read_sweep(f"search_spaces/transfer/{name}.yaml")


def test_rows_without_a_gold_label_or_words_are_counted(copy):
    overlay = copy("xnli", rows=[["a cat", "a dog", 1], ["a cat", "who", -1]])
    with pytest.raises(DataError, match="no gold label"):
        read_part(overlay, "en", "train")
    assert read_part(overlay, "en", "train", drop=True).dropped == {"no gold label": 1}
    overlay = copy("pos", rows=[[["the"], [5]], [[], []]])
    assert read_part(overlay, "fr", "train", drop=True).dropped == {"no words": 1}
    overlay = copy("ner", rows=[[["a", "b"], [0], ["en", "en"]]])
    with pytest.raises(DataError, match=r"PAN-X.fr train, row 0: label count"):
        read_part(overlay, "fr", "train")


def test_a_data_set_of_another_layout_is_named(copy):
    columns = {"premise": TEXT, "hypothesis": TEXT, "gold": TEXT}
    overlay = copy("xnli", rows=[["a", "b", "neutral"]], features=columns)
    with pytest.raises(DataError, match="no column 'label'; columns: premise, hypothesis, gold"):
        read_part(overlay, "en", "train")
    columns = {"premise": TEXT, "hypothesis": TEXT, "label": TEXT}
    overlay = copy("xnli", rows=[["a", "b", "neutrall"]], features=columns)
    with pytest.raises(DataError, match="unknown label 'neutrall' for xnli; did you mean 'neutral'"):
        read_part(overlay, "fr", "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: lealla\n", "has no section `transfer`"),
        ("transfer: {task: xnli, dataset: d, inputs: [a], label: l, subsets: {en: en}}", "xnli reads 2: name them"),
        ("transfer: {task: ner, dataset: d, inputs: [a, b], label: l, subsets: {en: en}}", "ner reads 1: name it"),
        ("transfer: {task: ner, dataset: d, inputs: [a], label: l, subsets: {de: de}}", "lacks 'en', which trains"),
        ("transfer: {task: nli, dataset: d, inputs: [a], label: l, subsets: {en: en}}", "'nli'"),
        ("transfer: {task: ner, dataset: d, inputs: [a], label: l, subsets: {en: en}, more: 1}", "more"),
    ],
)
def test_a_wrong_overlay_is_one_line(tmp_path, text, message):
    (tmp_path / "set.yaml").write_text(text)
    with pytest.raises(SpecError) as refused:
        read_overlay(str(tmp_path / "set.yaml"))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["babeltune", "transfer", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, *capsys.readouterr()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A promoted student: a sentence-transformers folder around a tiny BERT."""
    shape = {"width": 16, "feed_forward": 32, "projection": 8}
    return exported_student(tmp_path_factory.mktemp("model"), ["cat sat on mat", "dog ran far"] * 4, 40, **shape)


def test_transfer_takes_an_overlay_in_place_of_files(copy, folder, tmp_path, monkeypatch, capsys):
    found = overlay_of("pawsx")
    copy("pawsx", languages=found.subsets, splits=found.splits())
    overlay = "search_spaces/transfer/pawsx.yaml"
    options = ("--with", overlay, "--epochs", "1", "--max-tokens", "24", "--json")
    code, out, err = run(monkeypatch, capsys, str(folder), *options)
    assert code == 0, err
    record = json.loads(out)
    assert list(record["scores"]) == ["en", "de", "es", "fr", "ja", "ko", "zh"]
    assert record["tests"]["ko"]["path"] == "google-research-datasets/paws-x ko test"
    assert len(record["dev"]["scores"]) == 1
    code, _, err = run(monkeypatch, capsys, str(folder), "--with", overlay, "--task", "pawsx")
    assert (code, "leave out --task" in err) == (2, True)
    code, _, err = run(monkeypatch, capsys, str(folder), "--task", "pawsx")
    assert (code, "transfer lacks --train, --test" in err) == (2, True)
