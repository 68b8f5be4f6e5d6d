"""The overlays of search_spaces/evaluation, each read from a small copy that is laid out as the hub's data set."""

import gzip
import itertools
import json

import numpy as np
import pytest

from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.planning.sweep_file import read_data, read_sweep
from babeltune.schema.languages import meaning
from corpora import read_tasks

TEXTS = ("sentence1", "sentence2")
XTREME = ("source_sentence", "target_sentence")
REGIONS = ("mteb_africa", "mteb_indic", "mteb_europe")
ROWS = 6
SWAPPED = (0, 1, 2, 4, 3, 5)
"""Rows of the second column of every configuration that `configurations` names with a `!`: two of six are wrong."""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")


def configurations(folder, dataset, split, columns, names):
    """A data set with a file for each configuration, named by its card: bitext whose row i has the number i."""
    card = ["---", "configs:"]
    (folder / dataset / split).mkdir(parents=True, exist_ok=True)
    for name in names.split():
        first, second = columns or name.removesuffix("!").split("-")
        order = SWAPPED if name.endswith("!") else range(ROWS)
        rows = [{first: f"{name} {row}", second: f"other {other}"} for row, other in enumerate(order)]
        write_configuration(folder / dataset, split, name.removesuffix("!"), rows, card)
    (folder / dataset / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")


def write_configuration(folder, split, name, rows, card):
    """One compressed file of JSON lines, as mteb's repositories have them."""
    file = f"{split}/{name}.jsonl.gz"
    (folder / file).write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    card += [f'- config_name: "{name}"', "  data_files:", f"  - split: {split}", f'    path: "{file}"']


def table(folder, dataset, split, columns):
    """A data set of one table, which `save_to_disk` wrote."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict({split: rows}).save_to_disk(folder / dataset)


def multiway(folder, dataset, split, languages):
    """A column for each language; rows say the same, but for the last language, in which two rows are exchanged."""
    columns = {language: [f"{language} {row}" for row in range(ROWS)] for language in languages[:-1]}
    table(folder, dataset, split, {**columns, languages[-1]: [f"last {row}" for row in SWAPPED]})


def graded(folder, dataset, names=""):
    """STS whose grades fall with the distance of the numbers, as the cosines of `angles` do."""
    rows = [{"sentence1": f"a {row}", "sentence2": "b 0", "score": 5.0 - row} for row in range(ROWS)]
    if not names:
        table(folder, dataset, "test", {key: [row[key] for row in rows] for key in rows[0]})
        return
    card = ["---", "configs:"]
    (folder / dataset / "test").mkdir(parents=True)
    for name in names.split():
        write_configuration(folder / dataset, "test", name, rows, card)
    (folder / dataset / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")


def drawn(texts, languages):
    """A vector that depends on the text's last number alone."""
    draws = [np.random.default_rng(int(text.split()[-1])).normal(size=16) for text in texts]
    return np.stack(draws).astype(np.float32)


def angles(texts, languages):
    """Vectors at an angle that is the text's last number."""
    turns = np.array([int(text.split()[-1]) / 10 for text in texts])
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def sweep_with(name, folder, monkeypatch):
    """The `data` of a sweep with the overlay, and the overlay's sets."""
    monkeypatch.setenv("BABELTUNE_DATA", str(folder))
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    overlay = f"search_spaces/evaluation/{name}.yaml"
    sweep = read_sweep(folder / "sweep.yaml", overlays=[overlay], check=False)
    own, *sets = sweep.data.test
    assert own.name == "own", "the sweep's own test sets stay, with the gates that name them"
    return sweep.data, sets


def scored(name, folder, monkeypatch, encode=drawn, teacher=None):
    """The overlay's sets, and the scores of those that have a copy below the folder."""
    data, sets = sweep_with(name, folder, monkeypatch)
    found = read_tasks([task for task in sets if has_copy(folder, task.source)], folder, data)
    return sets, evaluate_texts(found, encode, "test", teacher=teacher)


def has_copy(folder, source):
    card = folder / source.dataset / "README.md"
    if card.exists():
        return f'config_name: "{source.subset}"' in card.read_text(encoding="utf-8")
    return source.subset is None and (folder / source.dataset).exists()


SWEEP = """
name: base
method: mse_distillation
objectives: [{metric: dev/seen/accuracy}]
data:
  root: ${BABELTUNE_DATA:-.}
  train: [{name: base, path: base.tsv, columns: {eng: eng, fra: fra}}]
  dev: [{name: seen, source: {name: seen, path: seen.tsv, columns: {eng: eng, fra: fra}}}]
  test: [{name: own, source: {name: own, path: own.tsv, columns: {eng: eng, fra: fra}}}]
"""


@pytest.mark.parametrize(("name", "count"), [("tatoeba_36", 36), ("tatoeba_112", 112)])
def test_tatoeba_is_the_mean_of_both_directions_and_of_its_languages(name, count, tmp_path, monkeypatch):
    configurations(tmp_path, "mteb/tatoeba-bitext-mining", "test", TEXTS, "fra-eng jpn-eng!")
    sets, scores = scored(name, tmp_path, monkeypatch)
    assert len({task.source.subset for task in sets}) == count
    assert scores[f"test/{name}/fra-eng/accuracy"] == 1
    assert scores[f"test/{name}/jpn-eng/accuracy_forward"] == pytest.approx(4 / 6)
    assert scores[f"test/{name}/accuracy"] == pytest.approx(5 / 6)


LABSE = (
    "af am ar as az be bg bn bo bs ca ceb co cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha haw he hi hmn hr "
    "ht hu hy id ig is it ja jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl no ny or pa pl pt "
    "ro ru rw si sk sl sm sn so sq sr st su sv sw ta te tg th tk tl tr tt ug uk ur uz vi wo xh yi yo zh zu"
)
"""The 109 languages of LaBSE's card."""


def test_tatoebas_languages_outside_of_labses_training_have_a_mean_of_their_own(tmp_path, monkeypatch):
    configurations(tmp_path, "mteb/tatoeba-bitext-mining", "test", TEXTS, "fra-eng max-eng!")
    sets, scores = scored("tatoeba_112", tmp_path, monkeypatch)
    trained_on = {meaning(code).language for code in (*LABSE.split(), "nb", "nn")}
    for task in sets:
        seen = meaning(task.source.subset.removesuffix("-eng")).language in trained_on
        assert task.group == ("tatoeba_seen" if seen else "tatoeba_unseen")
    assert scores["test/tatoeba_seen/accuracy"] == 1
    assert scores["test/tatoeba_unseen/accuracy"] == pytest.approx(4 / 6)


def test_buccs_corpora_are_mined_from_files_in_their_own_layout(tmp_path, monkeypatch):
    names = ("de", "fr", "ru", "zh")
    for name, (part, numbers) in itertools.product(names, {"training": range(6), "sample": range(100, 106)}.items()):
        folder = tmp_path / f"bucc2018/{name}-en"
        folder.mkdir(parents=True, exist_ok=True)
        for language, alone in ((name, 50), ("en", 70)):
            lines = [f'{language}-{n:09}\tA "{language}" text {n}\n' for n in (*numbers, alone)]
            (folder / f"{name}-en.{part}.{language}").write_text("".join(lines), encoding="utf-8")
        gold = [f"{name}-{n:09}\ten-{n:09}\n" for n in numbers]
        (folder / f"{name}-en.{part}.gold").write_text("".join(gold), encoding="utf-8")
    data, sets = sweep_with("bucc_mining", tmp_path, monkeypatch)
    scores = evaluate_texts(read_tasks(sets, tmp_path, data), drawn, "test")
    for name in names:
        assert scores[f"test/bucc_mining/{name}-en/f1_forward"] == 1
    assert scores["test/bucc_mining/f1_forward"] == scores["test/bucc_mining/f1_backward"] == 1


def test_biorxivs_titles_and_abstracts_are_clustered_by_category(tmp_path, monkeypatch):
    rows = {"sentences": [f"text {row}" for row in range(40)], "labels": ["botany", "zoology"] * 20}
    for part in ("s2s", "p2p"):
        table(tmp_path, f"mteb/biorxiv-clustering-{part}", "test", rows)
    sides = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    _, scores = scored(
        "biorxiv", tmp_path, monkeypatch, lambda texts, languages: sides[[int(t.split()[-1]) % 2 for t in texts]]
    )
    assert scores["test/biorxiv_s2s/ari"] == scores["test/biorxiv_p2p/en/v_measure"] == pytest.approx(1)


def test_bucc_is_scored_in_four_languages_with_english(tmp_path, monkeypatch):
    configurations(tmp_path, "mteb/bucc-bitext-mining", "test", TEXTS, "de-en fr-en ru-en zh-en!")
    sets, scores = scored("bucc", tmp_path, monkeypatch)
    assert len(sets) == 4
    assert scores["test/mteb_bucc/de-en/f1"] == 1
    assert scores["test/mteb_bucc/accuracy"] == pytest.approx((3 + 4 / 6) / 4)


@pytest.mark.slow
def test_flores_has_an_xsim_error_for_each_of_203_languages(tmp_path, monkeypatch):
    _, sets = sweep_with("flores_200", tmp_path, monkeypatch)
    languages = list({language: None for task in sets for language in task.source.columns})
    assert len(languages) == 204
    multiway(tmp_path, "mteb/FloresBitextMining", "devtest", sorted(languages))
    assert {task.right_model for task in sets} == {"teacher"}, "LASER3 compares with the teacher's English vectors"
    _, scores = scored("flores_200", tmp_path, monkeypatch, teacher=drawn)
    found = {name: value for name, value in scores.items() if name.endswith("-eng_Latn/xsim_error")}
    assert len(found) == 203
    wrong = {name: value for name, value in found.items() if value}
    assert wrong == {"test/flores_200/zul_Latn-eng_Latn/xsim_error": pytest.approx(2 / 6)}
    assert scores["test/flores_200/xsim_error"] == pytest.approx(2 / 6 / 203)


def test_flores_of_park_compares_each_of_five_languages_with_each(tmp_path, monkeypatch):
    languages = ["eng_Latn", "fra_Latn", "jpn_Jpan", "kor_Hang", "rus_Cyrl"]
    multiway(tmp_path, "mteb/FloresBitextMining", "devtest", languages)
    sets, scores = scored("flores_park", tmp_path, monkeypatch)
    assert {task.right_model for task in sets} == {"student"}
    errors = {
        name.split("/")[2]: scores[name] for name in scores if name.endswith("/xsim_error") and name.count("/") == 3
    }
    pairs = [subset for subset in errors if "-" in subset]
    assert len(pairs) == 10
    assert sorted(errors.keys() - pairs) == languages
    assert errors["rus_Cyrl"] == pytest.approx(sum(errors[pair] for pair in pairs if "rus_Cyrl" in pair) / 4)
    assert 0 < scores["test/flores_park/xsim_error"] < 1, "a sentence of the last language is broken"


def test_un_retrieval_reads_the_first_rows_of_each_pair(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "Helsinki-NLP/un_pc"
    card = ["---", "configs:"]
    for language in ("es", "fr", "ru", "zh"):
        (folder / f"en-{language}").mkdir(parents=True)
        rows = [{"translation": {"en": f"en {row}", language: f"{language} {row}"}} for row in range(ROWS)]
        datasets.Dataset.from_list(rows).to_parquet(folder / f"en-{language}/train-00000-of-00001.parquet")
        card += [f'- config_name: "en-{language}"', "  data_files:", "  - split: train"]
        card += [f"    path: en-{language}/train-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    sets, scores = scored("un_retrieval", tmp_path, monkeypatch)
    assert {task.source.split for task in sets} == {"train[:100000]"}
    assert scores["test/un_retrieval/accuracy_backward"] == 1
    assert scores["test/un_retrieval/zh-en/accuracy"] == 1


def test_english_sts_is_the_mean_of_eight_sets_and_others_have_their_own(tmp_path, monkeypatch):
    for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsbenchmark"):
        graded(tmp_path, f"mteb/{name}-sts")
    graded(tmp_path, "mteb/sts17-crosslingual-sts", "en-en ko-ko fr-en")
    graded(tmp_path, "mteb/sts22-crosslingual-sts", "en ru es-it")
    sets, scores = scored("sts_12_to_22", tmp_path, monkeypatch, angles)
    assert [task.group for task in sets].count("sts_en") == 8
    assert len({task.source.subset for task in sets if task.name == "sts17"}) == 11
    assert len({task.source.subset for task in sets if task.name == "sts22"}) == 18
    for part in ("sts_en", "sts17/ko", "sts17/fr-en", "sts22/ru", "sts22/es-it", "sts_benchmark/en"):
        assert scores[f"test/{part}/spearman"] == pytest.approx(1)


def test_xtreme_is_its_two_retrieval_tasks(tmp_path, monkeypatch):
    configurations(tmp_path, "google/xtreme", "validation", XTREME, "tatoeba.afr tatoeba.vie!")
    sets, scores = scored("xtreme", tmp_path, monkeypatch)
    assert [task.name for task in sets] == ["xtreme_tatoeba"] * 36 + ["xtreme_bucc"] * 4
    assert scores["test/xtreme_tatoeba/accuracy_forward"] == pytest.approx(5 / 6)
    configurations(tmp_path, "google/xtreme", "test", XTREME, "bucc18.de bucc18.zh")
    _, scores = scored("xtreme", tmp_path, monkeypatch)
    assert scores["test/xtreme_bucc/accuracy"] == 1


def all_columns(sets, dataset):
    """The languages of a multi-way set."""
    return sorted({language for task in sets if task.source.dataset == dataset for language in task.source.columns})


def test_africas_sets_are_read_and_averaged(tmp_path, monkeypatch):
    configurations(tmp_path, "mteb/biblenlp-corpus", "train", None, "eng-aka eng-yor")
    configurations(tmp_path, "mteb/NollySentiBitextMining", "train", TEXTS, "en-ha en-pcm")
    configurations(tmp_path, "mteb/tatoeba-bitext-mining", "test", TEXTS, "swh-eng amh-eng!")
    _, sets = sweep_with("mteb_africa", tmp_path, monkeypatch)
    ntrex = all_columns(sets, "mteb/NTREXBitextMining")
    assert (len(all_columns(sets, "mteb/FloresBitextMining")), len(ntrex)) == (60, 23)
    multiway(tmp_path, "mteb/NTREXBitextMining", "test", ntrex)
    _, scores = scored("mteb_africa", tmp_path, monkeypatch)
    assert scores["test/africa_bible/accuracy"] == scores["test/africa_nollysenti/ha-en/accuracy"] == 1
    assert scores["test/africa_tatoeba/accuracy"] == pytest.approx(5 / 6)
    assert len([name for name in scores if name.startswith("test/africa_ntrex/") and name.endswith("/f1")]) == 121
    assert 5 / 6 < scores["test/africa_bitext/accuracy"] < 1


def test_indias_sets_are_every_two_of_twenty_languages(tmp_path, monkeypatch):
    _, sets = sweep_with("mteb_indic", tmp_path, monkeypatch)
    multiway(tmp_path, "mteb/IN22ConvBitextMining", "test", all_columns(sets, "mteb/IN22ConvBitextMining"))
    _, scores = scored("mteb_indic", tmp_path, monkeypatch)
    assert len([name for name in scores if name.count("/") == 3 and name.endswith("/f1")]) == 190 + 20
    expected = (171 + 19 * 4 / 6) / 190
    assert scores["test/indic_bitext/accuracy"] == pytest.approx(expected), "one of the languages is partly wrong"


@pytest.mark.parametrize(
    ("overlay", "dataset", "some", "name", "count", "mean", "one"),
    [
        ("mteb_africa", "SemRel24STS", "afr kin", "africa_semrel", 8, "africa_sts", "africa_semrel/kin"),
        ("mteb_indic", "IndicCrosslingualSTS", "en-as en-ur", "indic_sts", 12, "indic_sts", "indic_sts/en-as"),
    ],
)
def test_sts_is_read_by_language(overlay, dataset, some, name, count, mean, one, tmp_path, monkeypatch):
    graded(tmp_path, f"mteb/{dataset}", some)
    sets, scores = scored(overlay, tmp_path, monkeypatch, angles)
    assert len([task for task in sets if task.name == name]) == count
    assert scores[f"test/{mean}/spearman"] == scores[f"test/{one}/spearman"] == pytest.approx(1)


def test_europes_sets_are_read_and_averaged(tmp_path, monkeypatch):
    configurations(tmp_path, "mteb/bucc-bitext-mining", "test", TEXTS, "de-en fr-en!")
    configurations(tmp_path, "mteb/biblenlp-corpus", "train", None, "eng-ces")
    configurations(tmp_path, "mteb/DiaBlaBitextMining", "test", TEXTS, "fr-en")
    table(
        tmp_path, "mteb/NorwegianCourtsBitextMining", "test", {side: [f"{side} {i}" for i in "012"] for side in TEXTS}
    )
    sets, scores = scored("mteb_europe", tmp_path, monkeypatch)
    flores, ntrex = (all_columns(sets, f"mteb/{name}BitextMining") for name in ("Flores", "NTREX"))
    assert (len(flores), len(ntrex)) == (27, 27)
    assert scores["test/europe_bitext/accuracy"] == pytest.approx((4 + 4 / 6) / 5)
    assert scores["test/europe_norwegian_courts/accuracy"] == 1


def test_europes_sts_is_read(tmp_path, monkeypatch):
    for name in ("sickr-sts", "sts12-sts", "sts14-sts", "sts15-sts", "stsbenchmark-sts", "FinParaSTS", "STSES"):
        graded(tmp_path, f"mteb/{name}")
    graded(tmp_path, "PL-MTEB/sickr-pl-sts")
    graded(tmp_path, "mteb/sts17-crosslingual-sts", "en-en en-de")
    sets, scores = scored("mteb_europe", tmp_path, monkeypatch, angles)
    assert len([task for task in sets if task.group == "europe_sts"]) == 15
    assert len([name for name in scores if name.count("/") == 3 and name.endswith("/spearman")]) == 10
    assert scores["test/europe_sts/spearman"] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tatoeba_36", "tatoeba_112", "bucc", "flores_200", "flores_park", "sts_12_to_22", "biorxiv", *REGIONS]
)
def test_revisions_configurations_and_columns_are_mtebs(name, tmp_path, monkeypatch):
    mteb = pytest.importorskip("mteb")
    known = {
        (task.metadata.dataset["path"], task.metadata.dataset["revision"]): task
        for task in mteb.get_tasks(task_types=["BitextMining", "STS", "Clustering"], exclude_superseded=False)
    }
    _, sets = sweep_with(name, tmp_path, monkeypatch)
    for source in (task.source for task in sets):
        task = known[source.dataset, source.revision]
        assert source.split in task.metadata.eval_splits
        parts = task.metadata.eval_langs if isinstance(task.metadata.eval_langs, dict) else {}
        if getattr(task, "parallel_subsets", False):
            languages = {language for part in parts for language in part.split("-")}
            assert set(source.columns) <= languages
        elif source.dataset == "mteb/biblenlp-corpus":
            assert any(part.startswith(source.subset.replace("-", "_Latn-") + "_") for part in parts)
        else:
            assert source.subset in parts or (source.subset is None and not parts)


def test_an_evaluation_alone_is_read_from_a_folder_of_saved_sets(tmp_path, monkeypatch):
    """As `evaluate MODEL --with` reads it."""
    configurations(tmp_path, "mteb/bucc-bitext-mining", "test", TEXTS, "de-en fr-en ru-en zh-en")
    monkeypatch.setenv("BABELTUNE_DATA", str(tmp_path))
    data, root = read_data("search_spaces/evaluation/bucc.yaml")
    scores = evaluate_texts(read_tasks(data.test, root, data), drawn, "test")
    assert scores["test/mteb_bucc/accuracy"] == 1
