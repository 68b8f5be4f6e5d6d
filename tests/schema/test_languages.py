"""Codes of one language are one language, however they are spelled; scripts and regions that differ stay apart."""

import numpy as np
import pytest

from babeltune.data.corpus import build_corpus
from babeltune.errors import SpecError
from babeltune.planning.goals import dev_metrics
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.planning.warnings import about_languages
from babeltune.schema.languages import by_priority, code_of, known_by, match, meaning, same_variety

ONE = [
    "en eng eng_Latn EN en-US",
    "zh zho chi cmn zho-CN zh_CN zho_Hans",
    "ko kor ko_KR kor_Hang",
    "ja jpn jpn_Jpan",
    "sn sna sna-Latn",
    "ps pus pbt pbt_Arab",
    "ne nep npi npi_Deva",
    "sw swa swh swh_Latn",
    "ar ara arb arb_Arab",
    "fa fas per pes",
    "de deu ger",
    "he heb iw",
    "om orm gaz",
    "sq sqi als",
]
APART = ["zho zho_Hant", "zho yue", "ara arz", "eng eng-GB", "fra fra-CA", "srp_Cyrl srp_Latn", "srp hrv", "nob nno"]


@pytest.mark.parametrize("codes", ONE)
def test_codes_of_two_and_three_letters_with_their_script_are_one_language(codes):
    first, *others = codes.split()
    assert meaning(first).is_language
    assert [code for code in others if not same_variety(first, code)] == []


@pytest.mark.parametrize("codes", APART)
def test_another_script_region_or_language_is_another_one(codes):
    assert not same_variety(*codes.split())


def test_a_script_of_its_own_is_still_the_same_language():
    assert known_by("zho_Hant", ["zho"])
    assert known_by("en", ["eng"])
    assert not known_by("yue", ["zho"])
    assert match("zho_Hant", ["eng", "zho_Hans", "zho_Hant"]) == "zho_Hant"
    assert match("zho-TW", ["eng", "zho", "zho_Hant"]) == "zho_Hant"
    assert match("zho_Hant", ["eng", "zho"]) == "zho"
    assert match("kor", ["eng", "zho"]) is None


@pytest.mark.parametrize("code", ["xx", "klingon", "sentence1", "a b", "", "und", "eng" * 400])
def test_a_code_that_nobody_knows_stands_for_itself_alone(code):
    assert meaning(code) == (code, code, False)


def test_the_anchor_is_found_however_it_is_spelled():
    assert by_priority(["de", "en", "ko"], ["eng"]) == ["en", "de", "ko"]
    assert by_priority(["deu", "eng", "kor"], ["kor", "eng"]) == ["kor", "eng", "deu"]
    assert by_priority(["de", "ko"], ["eng"]) == ["de", "ko"]


def tables(tmp_path, *headers):
    """TSV files of these columns, ten rows each, no text of them in another."""
    for number, header in enumerate(headers):
        rows = ["\t".join(f"{name} {number} {row}" for name in header.split()) for row in range(10)]
        text = "\n".join(["\t".join(header.split()), *rows])
        (tmp_path / f"{number}.tsv").write_text(text + "\n", encoding="utf-8")


def source(number, header, more=""):
    columns = ", ".join(f"{name}: {name}" for name in header.split())
    return f"{{name: s{number}, path: {number}.tsv, columns: {{{columns}}}{more}}}"


def read(tiny_file, tmp_path, train, dev, *more):
    tables(tmp_path, *train, dev)
    sources = ", ".join(source(number, header) for number, header in enumerate(train))
    held_out = [f"data.dev=[{{name: everyday, source: {source(len(train), dev)}}}]", "data.test=[]"]
    given = [f"data.root={tmp_path}", f"data.train=[{sources}]", *held_out, *more]
    return read_sweep(tiny_file, assignments=given)


def test_en_beside_eng_is_one_language(tiny_file, tmp_path):
    sweep = read(tiny_file, tmp_path, ["eng fra", "fr en", "kor eng_Latn"], "en fr_Latn ko")
    corpus = build_corpus(sweep.data, data_root(sweep), 0)
    assert corpus.groups == ("eng-fra", "eng-kor")
    assert np.bincount(corpus.pair_groups).tolist() == [20, 10]
    assert {subset for task in corpus.tasks for subset in [task.subset]} == {"fr_Latn-en", "ko-en"}
    assert "dev/everyday/fr_Latn-en/accuracy" in dev_metrics(sweep)
    assert not list(about_languages(sweep))


def test_a_teacher_of_en_teaches_eng(tiny_file, tmp_path):
    sweep = read(tiny_file, tmp_path, ["eng fra"], "eng fra", "teacher.languages=[en]")
    assert sweep.teacher.languages == ("en",)
    with pytest.raises(SpecError, match="knows kor"):
        read(tiny_file, tmp_path, ["eng fra"], "eng fra", "teacher.languages=[kor]")


def test_one_spelling_throughout_keeps_every_name_and_the_sweeps_id(tiny_file, tmp_path):
    sweep = read(tiny_file, tmp_path, ["en fr", "en zh"], "en zh-TW", "data.anchor_priority=[en]")
    assert [list(s.columns) for s in sweep.data.train] == [["en", "fr"], ["en", "zh"]]
    assert sweep_id(read_sweep(tiny_file)) == "tiny-6658b0495e"


def test_two_spellings_in_one_source_are_refused_and_two_scripts_kept(tiny_file, tmp_path):
    with pytest.raises(SpecError, match="source 's0' holds eng and en, which are one language; keep one of them"):
        read(tiny_file, tmp_path, ["eng en fra"], "eng fra")
    sweep = read(tiny_file, tmp_path, ["eng zho_Hans zho_Hant", "eng zho"], "eng zho_Hans zho_Hant")
    corpus = build_corpus(sweep.data, data_root(sweep), 0)
    assert corpus.groups == ("eng-zho_Hans", "eng-zho_Hant")
    assert np.bincount(corpus.pair_groups).tolist() == [20, 10]
    assert {task.subset for task in corpus.tasks} == {"zho_Hans-eng", "zho_Hant-eng"}


def test_a_pivot_and_listed_pairs_follow_the_spelling(tiny_file, tmp_path):
    tables(tmp_path, "eng fra", "en kor")
    pivot = "{name: p, format: pivot, left: s0, right: s1, join: en, pairs: [fra-kor]}"
    sources = f"{source(0, 'eng fra', ', pairs: [fra-eng]')}, {source(1, 'en kor', ', pairs: [en-kor]')}, {pivot}"
    given = [f"data.root={tmp_path}", f"data.train=[{sources}]", "data.dev=[]", "data.test=[]"]
    sweep = read_sweep(tiny_file, assignments=given, check=False)
    assert [s.pairs for s in sweep.data.train] == [("fra-eng",), ("eng-kor",), ("fra-kor",)]
    assert sweep.data.train[2].join == "eng"


def test_an_unknown_code_is_said_once(tiny_file, tmp_path):
    sweep = read(tiny_file, tmp_path, ["eng klingon", "eng klingon"], "eng klingon")
    (words,) = about_languages(sweep)
    assert words.startswith("'klingon' is no code of a language in ISO 639")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, "deu") for name in ("german", "German", "Deutsch", "allemand", "alemán")),
        *(("日本語", "jpn"), ("русский", "rus"), ("Englisch", "eng"), ("Simplified Chinese", "zho_Hans")),
        *(("jp", "jpn"), ("cz", "ces"), ("ua", "ukr"), ("deu", None), ("eng_Latn", None), ("natural", None)),
    ],
)
def test_the_name_of_a_language_has_a_code(name, code):
    assert code_of(name) == code


def test_the_name_of_a_language_in_place_of_its_code_is_said():
    columns = "data.train.0.columns={eng: eng, german: fra}"
    sweep = read_sweep("search_spaces/quickstart.yaml", assignments=[columns])
    assert any(words.endswith("; write deu") for words in about_languages(sweep))
