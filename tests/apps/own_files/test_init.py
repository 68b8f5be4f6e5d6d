"""From a user's files to a sweep file that `plan` accepts, whatever they look like; and what is refused, and how."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
import zipfile
from xml.sax.saxutils import escape

import datasets
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from babeltune.apps.own_files.init import InitOptions, init
from babeltune.apps.own_files.languages import alpha3, code_in
from babeltune.apps.own_files.proposal import MachineFacts, teacher_of
from babeltune.apps.own_files.rows import collect, source_of
from babeltune.apps.own_files.tables import read_table
from babeltune.cli.own_files import columns_of
from babeltune.data.corpus import build_corpus
from babeltune.data.sources import read_source
from babeltune.data.text_keys import text_key
from babeltune.errors import BabeltuneError, DataError
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.schema.json_schema import json_schema
from corpora import bundled
from workbooks import xlsx

ROWS = 240


@pytest.fixture(scope="module")
def text():
    """Real sentences: language -> column."""
    return bundled(ROWS, "eng", "fra", "rus", "kor")


@pytest.fixture
def make(tmp_path):
    """`init` of files in a folder; its sweep file is beside that folder."""
    (tmp_path / "mine").mkdir()

    def made(*files, **wanted):
        return init([str(tmp_path / "mine" / file) for file in files], InitOptions(out=tmp_path / "own.yaml", **wanted))

    made.folder = tmp_path / "mine"
    return made


def pairs(text, *languages):
    return list(zip(*(text[language] for language in languages), strict=True))


def put(path, rows, delimiter="\t", encoding="utf-8", quoting=csv.QUOTE_NONE):
    with path.open("w", encoding=encoding, newline="") as file:
        if quoting == csv.QUOTE_NONE:
            file.writelines(delimiter.join(map(str, row)) + "\n" for row in rows)
        else:
            csv.writer(file, delimiter=delimiter, quoting=quoting).writerows(rows)


def split_rows(tmp_path):
    """Split -> the rows of all its files."""
    rows_by_split = {}
    for path in sorted((tmp_path / "own_data").glob("*.tsv")):
        lines = path.read_text(encoding="utf-8").splitlines()
        rows_by_split.setdefault(path.name.partition(".")[0], []).extend(line.split("\t") for line in lines[1:])
    return rows_by_split


def test_two_messy_tables_become_a_sweep_file_that_plan_accepts(make, text, tmp_path):
    french = pairs(text, "fra", "eng")
    french[3] = ('Il a dit "oui" ; rien de plus.', 'He said "yes"; nothing more.')
    put(make.folder / "clients.csv", [*french, *french[:30]], ";", "cp1252", csv.QUOTE_MINIMAL)
    russian = [(i, *row, i % 2) for i, row in enumerate(pairs(text, "rus", "eng"))]
    put(make.folder / "export.tsv", [("Nr", "Russian text", "English text", "ok"), *russian, ("broken",)])
    result = make("clients.csv", "export.tsv")
    assert [(file.columns, file.rows) for file in result.files] == [
        ({"fra": "0", "eng": "1"}, ROWS),
        ({"rus": "Russian text", "eng": "English text"}, ROWS),
    ]
    assert result.files[0].left_out == {"repeated": 30}
    assert result.files[1].left_out == {"column count": 1}
    assert any("cp1252" in note for note in result.notes)
    sweep = read_sweep(result.path, reachable=True)
    assert (sweep.keep.trials, sweep.keep.optimizer) == (3, False)
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed)
    trained = sum(counts["train"] for counts in corpus.counts.values())
    assert trained == sum(sizes["train"] for sizes in result.splits.values())
    written = [row for rows in split_rows(tmp_path).values() for row in rows]
    assert ['Il a dit "oui" ; rien de plus.', 'He said "yes"; nothing more.'] in written
    assert any("é" in row[0] for row in written)


def test_many_broken_rows_are_refused_and_many_empty_cells_are_not(make, text, tmp_path):
    french = pairs(text, "fra", "eng")
    broken = [(fra, eng, "more") for fra, eng in french[: ROWS // 10]]
    put(make.folder / "broken.tsv", [("fra", "eng"), *french, *broken])
    with pytest.raises(DataError, match=rf"broken.tsv: {ROWS // 10} of [\d,]+ rows are broken .* more than 5%"):
        make("broken.tsv")
    gaps = [(fra, "") for fra, _ in french[: ROWS // 5]]
    put(make.folder / "gaps.tsv", [("fra", "eng"), *french, *gaps])
    assert make("gaps.tsv").files[0].left_out == {"empty side": ROWS // 5}


def test_rows_that_share_a_text_never_stand_in_two_splits(make, text, tmp_path):
    french, russian = pairs(text, "fra", "eng"), pairs(text, "rus", "eng")
    chained = [(f"{fra} (bis)", eng.upper()) for fra, eng in french[:60]]
    put(make.folder / "a.tsv", [("fra", "eng"), *french, *chained])
    put(make.folder / "b.tsv", [("rus", "eng"), *russian])
    make("a.tsv", "b.tsv")
    texts = {name: {text_key(text) for row in rows for text in row} for name, rows in split_rows(tmp_path).items()}
    assert set(texts) == {"train", "dev", "test"}
    assert not texts["train"] & texts["dev"]
    assert not texts["train"] & texts["test"]
    assert not texts["dev"] & texts["test"]


def saved_model(folder, *, pickled=False):
    """The files of a sentence-transformers model that say what it is; its weights are empty."""
    folder.mkdir(parents=True)
    (folder / "modules.json").write_text("[]")
    (folder / ("pytorch_model.bin" if pickled else "model.safetensors")).write_bytes(b"")


def test_models_at_hand_are_proposed_as_baselines(make, text, tmp_path, monkeypatch):
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    put(make.folder / "a.tsv", [("fra", "eng"), *pairs(text, "fra", "eng")])
    without = make("a.tsv").path.read_text(encoding="utf-8")
    assert "baselines: []" in without
    assert "None is at hand here; `baselines: [intfloat/multilingual-e5-small]`" in " ".join(without.split())
    saved_model(tmp_path / "e5")
    saved_model(tmp_path / "pickled", pickled=True)
    saved_model(tmp_path / "untrained")  # a row that the leaderboard has already
    cached = hub / "models--org--small"
    saved_model(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    out = tmp_path / "again.yaml"
    init([str(make.folder / "a.tsv")], InitOptions(out=out))
    sweep = read_sweep(out)
    assert sweep.baselines == (str(tmp_path / "e5"), "org/small")
    teacher = init([str(make.folder / "a.tsv")], InitOptions(out=tmp_path / "third.yaml", teacher="org/small"))
    assert read_sweep(teacher.path).baselines == (str(tmp_path / "e5"),)


def test_an_editor_finds_the_schema_of_the_sweep_file(make, text, tmp_path):
    put(make.folder / "a.tsv", [("fra", "eng"), *pairs(text, "fra", "eng")])
    first = make("a.tsv").path.read_text(encoding="utf-8").splitlines()[0]
    before, _, path = first.partition("$schema=")
    assert before == "# yaml-language-server: "
    assert json.loads((tmp_path / path).read_text(encoding="utf-8")) == json_schema("sweep")
    spaced = init([str(make.folder / "a.tsv")], InitOptions(out=tmp_path / "my own.yaml"))
    assert "yaml-language-server" not in spaced.path.read_text(encoding="utf-8"), "its line takes no blank"


@pytest.mark.parametrize("large", [1, 20_000])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_student_is_a_transformer_where_there_is_a_gpu(make, text, monkeypatch, gpu, large):
    monkeypatch.setattr("babeltune.apps.own_files.init.this_machine", lambda: MachineFacts(cores=2, gpu=gpu))
    monkeypatch.setattr("babeltune.apps.own_files.proposal.LARGE", large)
    put(make.folder / "a.tsv", [("fra", "eng"), *pairs(text, "fra", "eng")])
    result = make("a.tsv")
    sweep = read_sweep(result.path, reachable=True)
    shape = (sweep.student.kind, sweep.student.width, sweep.training.precision)
    assert shape == (("transformer", 256, "bf16") if gpu else ("static", 512, "fp32"))
    assert ("student.layers" in sweep.parameters) == gpu
    assert [command.endswith(" --cluster clusters/local_gpu.yaml") for command in result.next] == [gpu, gpu]
    assert make_trial(sweep, 0, {}).student.kind == sweep.student.kind


def test_the_same_files_give_the_same_splits(make, text, tmp_path):
    put(make.folder / "a.tsv", [("fra", "eng"), *pairs(text, "fra", "eng")])
    make("a.tsv")
    assert [path.name for path in make.folder.iterdir()] == ["a.tsv"], "nothing is written where the user's files are"
    again = init([str(make.folder / "a.tsv")], InitOptions(out=tmp_path / "second.yaml"))
    assert f"`babeltune plan {again.path}" in again.path.read_text(encoding="utf-8")
    for path in (tmp_path / "own_data").iterdir():
        assert path.read_bytes() == (tmp_path / "second_data" / path.name).read_bytes()
    assert again.splits["fra-eng"]["test"] >= 20


def jsonl(folder, rows):
    lines = [json.dumps({"id": i, "translation": {"fr": fra, "en": eng}}) for i, (fra, eng) in enumerate(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return ["rows.jsonl"]


def columnar(folder, rows):
    table = pa.table({"id": list(range(len(rows))), "source": [a for a, _ in rows], "target": [b for _, b in rows]})
    parquet.write_table(table, folder / "rows.parquet")
    return ["rows.parquet"]


def saved(folder, rows):
    dataset = datasets.Dataset.from_list([{"translation": {"fr": fra, "en": eng}} for fra, eng in rows])
    datasets.DatasetDict({"train": dataset}).save_to_disk(folder / "saved")
    return ["saved"]


def moses(folder, rows):
    for code, column in zip(("fr", "en"), zip(*rows, strict=True), strict=True):
        (folder / f"talks.{code}").write_text("\n".join(column) + "\n", encoding="utf-8")
    return ["talks.fr", "talks.en"]


def packed(folder, rows):
    lines = "".join(f"{fra}\t{eng}\n" for fra, eng in rows)
    (folder / "rows.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    return ["rows.tsv.gz"]


def excel(folder, rows):
    put(folder / "rows.tsv", [("français", "anglais"), *rows], encoding="utf-16", quoting=csv.QUOTE_ALL)
    return ["rows.tsv"]


@pytest.mark.parametrize("form", [jsonl, columnar, saved, moses, packed, excel])
def test_every_format_is_read_without_a_word_about_it(form, make, text):
    result = make(*form(make.folder, pairs(text, "fra", "eng")))
    assert set(result.splits) == {"fra-eng"}
    assert sum(result.splits["fra-eng"].values()) == ROWS
    read_sweep(result.path, reachable=True)


def comma_separated(folder, rows):
    put(folder / "rows.csv", [("fr", "en"), *rows], ";", "cp1252", csv.QUOTE_MINIMAL)
    return ["rows.csv"]


def workbook(folder, rows):
    xlsx(folder / "rows.xlsx", sheet=[("fr", "en"), *(tuple(map(escape, row)) for row in rows)])
    return ["rows.xlsx"]


def memory(folder, rows):
    unit = '<tu><tuv xml:lang="fr"><seg>{}</seg></tuv><tuv xml:lang="en"><seg>{}</seg></tuv></tu>'
    units = "".join(unit.format(*map(escape, row)) for row in rows)
    (folder / "rows.tmx").write_text(f'<tmx version="1.4"><body>{units}</body></tmx>', encoding="utf-8")
    return ["rows.tmx"]


def xliff(folder, rows):
    unit = "<trans-unit><source>{}</source><target>{}</target></trans-unit>"
    units = "".join(unit.format(*map(escape, row)) for row in rows)
    file = f'<file source-language="fr" target-language="en"><body>{units}</body></file>'
    (folder / "rows.xlf").write_text(f'<xliff version="1.2">{file}</xliff>', encoding="utf-8")
    return ["rows.xlf"]


def catalogue(folder, rows):
    head = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: en\\n"\n\n'
    units = "".join(f"msgid {json.dumps(a, ensure_ascii=False)}\nmsgstr {json.dumps(b)}\n\n" for a, b in rows)
    (folder / "rows.po").write_text(head + units, encoding="utf-8")
    return ["rows.po"]


@pytest.mark.parametrize("form", [jsonl, columnar, packed, excel, comma_separated, workbook, memory, xliff, catalogue])
def test_what_init_looks_at_is_what_a_sweep_reads(form, make, text):
    rows = [*pairs(text, "fra", "eng")[:50], ('Il a dit "oui" ; rien.', 'He said "yes"; nothing.')]
    (file,) = form(make.folder, rows)
    table = read_table(str(make.folder / file))
    names = table.columns[-2:]
    read = read_source(source_of(table, dict(zip(("fra", "eng"), names, strict=True))), make.folder, others={})
    assert list(zip(*read.columns.values(), strict=True)) == rows
    assert list(table.only(*names).sample) == rows, "the encoding, quotation marks and columns are those of the sweep"


@pytest.mark.parametrize("first", [("[Musique douce]", "[Soft music]"), (r"{\an8}Bonjour", r"{\an8}Good morning")])
def test_a_first_line_in_brackets_is_text_and_no_json(make, text, first):
    files = moses(make.folder, [first, *pairs(text, "fra", "eng")])
    assert sum(make(*files).splits["fra-eng"].values()) == ROWS + 1


def test_a_table_of_three_languages_is_one_set(make, text):
    put(make.folder / "a.csv", [("eng", "fra", "kor"), *pairs(text, "eng", "fra", "kor")], ",", quoting=csv.QUOTE_ALL)
    result = make("a.csv")
    assert set(result.splits) == {"eng-fra-kor"}
    read_sweep(result.path)


def test_text_that_is_not_aligned_gives_the_commands_that_mine_pairs(make, text, tmp_path):
    (make.folder / "fr.txt").write_text("\n".join(text["fra"]), encoding="utf-8")
    (make.folder / "en.txt").write_text("\n".join(text["eng"][:-7]), encoding="utf-8")
    result = make("fr.txt", "en.txt", teacher="my/model")
    assert result.kind == "mining"
    assert not (tmp_path / "own.yaml").exists()
    mine, init_again = result.path.read_text(encoding="utf-8").splitlines()[-2:]
    assert mine.startswith(f"babeltune mine {make.folder / 'fr.txt'} {make.folder / 'en.txt'} my/model --out ")
    mined = f"babeltune init {tmp_path / 'own_mined_1.tsv'} --out {tmp_path / 'own.yaml'} --columns fra=1,eng=2"
    assert init_again == mined


def test_pairs_that_were_mined_are_read_with_the_columns_that_the_recipe_names(make, text):
    put(make.folder / "m.tsv", [(f"1.{i:06d}", *row) for i, row in enumerate(pairs(text, "fra", "eng"))])
    assert make("m.tsv", columns={"fra": "1", "eng": "2"}).splits["fra-eng"]["train"] > 100


@pytest.mark.parametrize(
    ("first", "columns", "rows", "broken"),
    [
        pytest.param(("Oui.", "Yes."), {}, ROWS + 1, 0, id="short words are no header"),
        pytest.param(("French text", "English text"), {"fra": "0", "eng": "1"}, ROWS, 0, id="a number names a column"),
        pytest.param(("x" * 400_000,), {}, ROWS, 1, id="a huge broken line is one counted row"),
    ],
)
def test_a_first_row_is_a_header_or_text_or_broken(make, text, first, columns, rows, broken):
    put(make.folder / "a.tsv", [first, *pairs(text, "fra", "eng")])
    file = make("a.tsv", columns=columns).files[0]
    assert (file.rows, sum(file.left_out.values())) == (rows, broken)


def test_quotation_marks_that_are_text_lose_no_row(make, text):
    rows = pairs(text, "fra", "eng")
    put(
        make.folder / "a.txt",
        [(f'"{row[0]}', f'{row[1]} "so') if i % 9 == 0 else row for i, row in enumerate(rows)],
        "|",
    )
    result = make("a.txt")
    assert (result.files[0].rows, result.files[0].left_out) == (ROWS, {})


def test_a_language_that_nobody_can_tell_has_the_name_of_its_column(make, text):
    unknown = [" ".join(word[::-1] for word in fra.split()) for fra in text["fra"]]
    put(make.folder / "a.tsv", [("dtp", "eng"), *zip(unknown, text["eng"], strict=True)])
    assert set(make("a.tsv").splits) == {"dtp-eng"}


def numbered(text, first, second, *words):
    return [(*(word.format(i) for word in words), *row) for i, row in enumerate(pairs(text, first, second))]


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        *((lambda text, names=names: [names, *pairs(text, "fra", "eng")], {"fra": names[0], "eng": names[1]})
          for names in (("src", "tgt"), ("tgt", "src"), ("in", "out"), ("que", "ans"))),
        (lambda text: numbered(text, "rus", "eng", "0.{}", "https://a.b/{}"), {"rus": "2", "eng": "3"}),
        (lambda text: [("id", "fra", "eng"), *numbered(text, "fra", "eng", "news-test2008:{}")],
         {"fra": "fra", "eng": "eng"}),
    ],
    ids=["src", "tgt", "in", "que", "score and address", "ids"],
)  # fmt: skip
def test_languages_are_found_whatever_is_over_or_beside_their_columns(make, text, rows, columns):
    put(make.folder / "a.tsv", rows(text))
    assert make("a.tsv").files[0].columns == columns


def test_aligned_files_that_end_in_src_and_tgt_are_in_the_languages_of_their_text(make, text):
    for name, language in (("train.src", "fra"), ("train.tgt", "eng")):
        (make.folder / name).write_text("\n".join(text[language]) + "\n", encoding="utf-8")
    assert set(make("train.src", "train.tgt").splits) == {"fra-eng"}


def test_a_column_in_no_one_language_beside_two_others_is_left_out_with_a_note(make, text):
    short = [text[("eng", "fra", "rus")[i // 40 % 3]][i][:20] for i in range(ROWS)]
    put(make.folder / "a.tsv", [("note", "fra", "eng"), *zip(short, text["fra"], text["eng"], strict=True)])
    result = make("a.tsv")
    assert result.files[0].columns == {"fra": "fra", "eng": "eng"}
    assert any("column 'note' is in no one language" in note and "--columns" in note for note in result.notes)


def test_a_column_whose_name_is_another_language_is_named(make, text):
    put(make.folder / "a.tsv", [("eng", "fra"), *pairs(text, "fra", "eng")])
    assert any("column 'eng' reads as fra" in note for note in make("a.tsv").notes)


@pytest.mark.parametrize(("name", "said"), [("Deutsch", "deu"), ("German text", "deu"), ("text_is", None)])
def test_a_name_of_a_language_is_doubted_and_the_end_of_a_word_is_not(make, text, name, said):
    put(make.folder / "a.tsv", [("fra", name), *pairs(text, "fra", "eng")])
    result = make("a.tsv")
    assert result.files[0].columns == {"fra": "fra", "eng": name}
    assert [f"--columns {said}={name}" in note for note in result.notes] == [True] * (said is not None)


def test_bytes_are_text_if_they_are_utf_8_and_else_are_named(make, text):
    columns = {language: [row.encode() for row in text[language]] for language in ("fra", "eng")}
    columns["image"] = [b"\x89\xff" + row for row in columns["fra"]]
    parquet.write_table(pa.table(columns), make.folder / "a.parquet")
    result = make("a.parquet")
    assert (result.files[0].columns, result.files[0].rows) == ({"fra": "fra", "eng": "eng"}, ROWS)
    assert ["image left out" in note for note in result.notes] == [True]


def test_a_first_line_that_names_the_delimiter_is_no_row(make, text, tmp_path):
    rows = [[field.replace(";", ",") for field in row] for row in pairs(text, "fra", "eng")]
    put(make.folder / "a.csv", [("sep=;",), ("fr", "en"), *rows], ";")
    result = make("a.csv")
    assert (result.files[0].columns, result.files[0].rows) == ({"fra": "fr", "eng": "en"}, ROWS)
    assert {tuple(row) for part in split_rows(tmp_path).values() for row in part} <= {tuple(row) for row in rows}


@pytest.mark.parametrize("sheet", ["Second [x]", "[x]"])
def test_the_name_of_a_sheet_may_hold_brackets(make, text, sheet):
    rows = [[escape(field) for field in row] for row in pairs(text, "fra", "eng")]
    xlsx(make.folder / "a[b].xlsx", **{"First": [("no",)], sheet: [("fr", "en"), *rows]})
    assert make(f"a[b].xlsx[{sheet}]").files[0].rows == ROWS


def test_files_without_text_and_names_of_no_file_say_so(make, text):
    (make.folder / "empty").mkdir()
    parquet.write_table(pa.table({"fr": pa.array([], pa.string())}), make.folder / "a.parquet")
    xlsx(make.folder / "a.xlsx", Sheet1=[])
    put(make.folder / "news.tsv", pairs(text, "fra", "eng"))
    for name, words in (
        ("empty", "empty is a folder without files; name files"),
        ("a.parquet", "has the columns fr and no rows"),
        ("a.xlsx", "has no cells; name a workbook with text"),
        ("new.tsv", r"did you mean 'news\.tsv'"),
    ):
        with pytest.raises(BabeltuneError, match=words):
            make(name)
    with pytest.raises(BabeltuneError, match=r"'' is no file's name"):
        init([""], InitOptions(out=make.folder / "own.yaml"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.xlsx", b"PK\x03\x04....", "save each sheet as CSV"),
        ("a.json", b'[{"en": "a"}]', r"one object a line, such as by `jq -c '\.\[\]'"),
        ("a.json", b'{"en": "a"}{"en": "b"}\n', r"one object a line, such as by `jq -c '\.' "),
        ("a.json", b'{"data": [{"en": "a"}]}\n', r"no column of text.*`jq -c '\.data\[\]'"),
        ("a.csv", b"sep=;\nfr,en\nun,one\n", "a.csv:1: `sep=;` names a delimiter that no other line has"),
        ("a.fra", lzma.compress(b"un\n", lzma.FORMAT_ALONE), "packed with lzma; unpack it with unlzma"),
        ("a.tsv", b"", "is empty"),
        ("a.tsv", b"\n \n", "only blank lines"),
        ("a.tsv", b"x" * 2**20 + b"\ty\n", "or ones of more than 1,048,576 bytes"),
        ("a.tsv", b"id\teng\tfra\n", "has a header and no rows: id, eng, fra; put rows below it"),
        ("a.csv", b"source,target\n", "has a header and no rows"),
        ("a.bin", b"a\0b\n", "zero bytes"),
        ("a.tsv", b"fra\teng\nun\tone\ndeux\ttwo\n", "at least 100"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_a_next_step(name, content, words, make, tmp_path):
    (make.folder / name).write_bytes(content)
    with pytest.raises(BabeltuneError, match=words) as caught:
        make(name)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "own.yaml").exists()
    assert not (tmp_path / "own_data").exists()


def test_a_data_set_that_is_neither_saved_nor_cached_is_one_line(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BabeltuneError, match=r"data set 'nobody/nothing'.*cannot be loaded") as caught:
        init(["nobody/nothing[dev]"], InitOptions(out=tmp_path / "own.yaml"))
    assert caught.value.exit_code == 2


def tagged(text):
    """Twenty rows whose tags say that both sides are English, and then all others."""
    odd = [(eng, f"{eng} {eng}", "en", "en") for eng in text["eng"][:20]]
    return [("a", "b", "lang1", "lang2"), *odd, *((fra, eng, "fr", "en") for fra, eng in pairs(text, "fra", "eng"))]


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (lambda text: [*enumerate(text["fra"])], {}, "--columns fra=COLUMN,eng=COLUMN"),
        (lambda text: [("french", "english"), *pairs(text, "fra", "eng")], {"fra": "frensh", "eng": "english"},
         r"no column 'frensh'.*did you mean 'french'"),
        (lambda text: pairs(text, "fra", "rus"), {}, r"knows English.*--teacher"),
        (lambda text: [("fra", "eng"), *((fra, "Good morning to all of you.") for fra in text["fra"])],
         {"fra": "fra", "eng": "eng"}, "share a text"),
        (lambda text: [("fr", "en"), *pairs(text, "fra", "eng")[:1] * 300], {}, "all rows are equal"),
        (lambda text: [("fra", "eng"), *pairs(text, "fra", "eng")[:30], *pairs(text, "rus", "eng")[30:]], {},
         r"fra reads as rus .* 210 of 240 rows left out.*30 different rows"),
        (lambda text: [("French text", "English text"), *pairs(text, "fra", "eng")], {"gre": "English text"},
         "'English text' is gre .Greek., and it reads as eng 100%; if so, .*the bundled teacher knows English"),
        (tagged, {}, r"20 of 260 rows are broken \(20 en, en\).*correct lang1, lang2"),
    ],
    ids=["one language", "no such column", "not the teacher's", "one text", "equal", "too few", "misnamed", "odd tags"],
)  # fmt: skip
def test_a_table_that_is_no_training_text_is_refused_with_a_next_step(make, text, rows, columns, words):
    put(make.folder / "a.tsv", rows(text))
    with pytest.raises(BabeltuneError, match=words):
        make("a.tsv", columns=columns)


def test_what_exists_is_not_replaced(make, text, tmp_path):
    put(make.folder / "a.tsv", pairs(text, "fra", "eng"))
    (tmp_path / "own.yaml").write_text("mine")
    with pytest.raises(BabeltuneError, match="exists already"):
        make("a.tsv")
    assert (tmp_path / "own.yaml").read_text() == "mine"


def test_a_killed_init_goes_on_and_no_file_of_the_user_is_lost(make, text, tmp_path, monkeypatch):
    put(make.folder / "a.tsv", pairs(text, "fra", "eng"))
    with monkeypatch.context() as patch:
        patch.setattr("babeltune.apps.own_files.init.write_out", lambda *_: os._exit(9))
        if not (child := os.fork()):
            make("a.tsv")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    data = tmp_path / "own_data"
    assert data.is_dir()
    first = next(data.glob("train.*.tsv"))
    content = first.read_text(encoding="utf-8")
    for path, words in ((first, content + "mien\tmine\n"), (data / "notes.txt", "mine")):
        path.write_text(words, encoding="utf-8")
        with pytest.raises(BabeltuneError, match=r"own_data exists already; remove it"):
            make("a.tsv")
        assert path.read_text(encoding="utf-8") == words
        first.write_text(content, encoding="utf-8")
    (data / "notes.txt").unlink()
    assert make("a.tsv").path.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "own.yaml", "own_data"]


@pytest.mark.parametrize(
    "rows",
    [
        [("fra", "bre"), ("Le chat dort sur le tapis.", "Emañ ar c'hazh o kousket war ar pallenn.")],
        [("text_fr", "text_en"), ("Oui", "Si"), ("Non", "No")],
        [("French", "English"), ("Oui", "Yes")],
        [("eng", "deu"), ("Hi", "Tschüss, mein Freund, bis morgen!")],
    ],
)
def test_a_few_rows_do_not_overrule_the_names_of_their_columns(rows, tmp_path):
    put(tmp_path / "a.tsv", rows)
    (table,) = collect([read_table(str(tmp_path / "a.tsv"))], {}).tables
    assert list(table.columns.values()) == list(rows[0])
    codes = [alpha3(code_in(name) or name) for name in rows[0]]
    assert list(table.texts) == codes


def test_a_short_file_is_in_the_language_of_its_name(tmp_path):
    for language, line in (("eng", "Si si."), ("fra", "Oui oui.")):
        (tmp_path / f"few.{language}").write_text(f"{line}\n", encoding="utf-8")
    (table,) = collect([read_table(str(tmp_path / f"few.{code}")) for code in ("eng", "fra")], {}).tables
    assert list(table.texts) == ["eng", "fra"]


# --- Headers and languages -----------------------------------------------------------------------------------------


def test_columns_that_the_user_names_make_a_header_whatever_they_are_called(make, text):
    rows = [("le texte, ici", "b=c d"), *pairs(text, "fra", "eng")]
    put(make.folder / "a.csv", rows, ",", quoting=csv.QUOTE_MINIMAL)
    result = make("a.csv", columns=columns_of('fra="le texte, ici",eng=b=c d'))
    assert [(file.columns, file.rows) for file in result.files] == [({"fra": "le texte, ici", "eng": "b=c d"}, ROWS)]
    with pytest.raises(BabeltuneError, match=r"--columns .*: a quotation mark is missing"):
        columns_of('fra="le texte,eng=b')
    result.path.unlink()
    shutil.rmtree(result.path.with_name("own_data"))
    with pytest.raises(BabeltuneError, match=r"a\.csv: no column 'x'.*'b=c d'.*say --no-header if it is text"):
        make("a.csv", columns={"fra": "x", "eng": "b=c d"})


def test_a_first_row_that_nobody_can_judge_is_text_and_said(make, text):
    rows = [["".join(filter(str.isalnum, side))[:6] for side in row] for row in pairs(text, "fra", "eng")]
    put(make.folder / "words.tsv", [("vorne", "hinten"), *rows])
    first_table = read_table(str(make.folder / "words.tsv"))
    assert not first_table.header
    assert any("the first row (" in note and note.endswith("if it is not: --header") for note in first_table.notes)


@pytest.mark.parametrize(
    "names", [("source", "target", "source_lang", "target_lang"), ("a", "b", "lang1", "lang2"), None]
)
def test_a_table_that_names_the_languages_of_each_row_is_several_pairs(make, text, names):
    rows = [(fra, eng, "fr", "en") for fra, eng in pairs(text, "fra", "eng")[:120]]
    rows += [(eng, rus, "en", "ru") for rus, eng in pairs(text, "rus", "eng")[120:]]
    put(make.folder / "a.tsv", [names, *rows] if names else rows)
    result = make("a.tsv")
    assert [(set(file.columns), file.rows) for file in result.files] == [({"fra", "eng"}, 120), ({"eng", "rus"}, 120)]
    assert set(result.splits) == {"fra-eng", "eng-rus"}


def test_a_column_of_language_pairs_says_which_languages_a_row_has(make, text):
    rows = [("en-fr", eng, fra) for fra, eng in pairs(text, "fra", "eng")[:120]]
    rows += [("kor-eng", eng, kor) for kor, eng in pairs(text, "kor", "eng")[120:]]
    put(make.folder / "a.tsv", [("langpair", "source", "target"), *rows])
    assert [file.columns for file in make("a.tsv").files] == [
        {"eng": "source", "fra": "target"},
        {"eng": "source", "kor": "target"},
    ]


def test_swapped_rows_are_swapped_back_and_rows_in_other_languages_left_out(make, text, tmp_path):
    rows = pairs(text, "fra", "eng")
    swapped = [row[::-1] if i % 3 == 0 else row for i, row in enumerate(rows)]
    for i in range(1, 61, 3):
        swapped[i] = (text["rus"][i], swapped[i][1])
    put(make.folder / "a.tsv", [("fr", "en"), *swapped])
    result = make("a.tsv")
    assert result.files[0].left_out == {"in another language": 20}
    assert any("80 rows have fra and eng swapped; they were swapped back" in note for note in result.notes)
    assert {tuple(row) for part in split_rows(tmp_path).values() for row in part} <= set(rows)


def test_a_few_rows_in_another_language_stay_and_are_said(make, text):
    rows = pairs(text, "fra", "eng")
    put(make.folder / "a.tsv", [("fr", "en"), (text["rus"][0], rows[0][1]), *rows[1:]])
    result = make("a.tsv")
    assert result.files[0].rows == ROWS
    assert any("1 row seems to be in another language than the column; kept" in note for note in result.notes)


def test_a_language_that_the_text_contradicts_is_believed_and_said(make, text):
    put(make.folder / "a.tsv", [("Deutsch", "Englisch"), *pairs(text, "rus", "eng")])
    result = make("a.tsv", columns={"gre": "Deutsch"})
    assert result.files[0].columns == {"ell": "Deutsch", "eng": "Englisch"}
    assert result.files[0].rows == ROWS
    (words,) = [note for note in result.notes if "--columns" in note]
    assert "'Deutsch' is gre (Greek), and it reads as rus" in words


@pytest.mark.parametrize("columns", [{}, {"eng": "en", "fra": "fr"}])
def test_a_header_the_wrong_way_round_is_swapped_as_a_whole(make, text, tmp_path, columns):
    rows = [*pairs(text, "fra", "eng"), *((f"Paris {i} km", f"London {i} km") for i in range(9))]
    put(make.folder / "a.tsv", [("en", "fr"), *rows])
    result = make("a.tsv", columns=columns)
    assert result.files[0].rows == len(rows)
    assert any("column 'en' reads as fra" in note or "swapped back as a whole" in note for note in result.notes)
    assert not any("rows have" in note for note in result.notes)
    head, *lines = next((tmp_path / "own_data").glob("train*")).read_text(encoding="utf-8").splitlines()
    assert {tuple(line.split("\t")[:: 1 if head == "fra\teng" else -1]) for line in lines} <= set(rows)


def test_rows_of_a_mixed_column_that_nobody_can_tell_are_counted(make, text):
    rows = [row[::-1] if i % 3 == 0 else row for i, row in enumerate(pairs(text, "fra", "eng"))]
    put(make.folder / "a.tsv", [("fr", "en"), *rows, *((f"{i} km", f"{i} km/h") for i in range(9))])
    phrases = ("rows have fra and eng swapped", "9 rows could not be judged")
    assert any(all(words in note for words in phrases) for note in make("a.tsv").notes)


def put_sheet(path, rows):
    width = max(map(len, rows))
    xlsx(path, one=[[escape(cell) for cell in row] + [""] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("ending", ["tsv", "csv", "xlsx"])
@pytest.mark.parametrize("title", [[("Project X",), ("", "")], [("Project X", ""), ("", ""), ("2026", "")]])
def test_a_header_below_a_title_is_no_row_and_neither_is_its_repetition(make, text, tmp_path, ending, title):
    rows = pairs(text, "fra", "eng")
    table = [*title, ("fr", "en"), *rows[:100], ("fr", "en"), *rows[100:]]
    path = make.folder / f"a.{ending}"
    if ending == "xlsx":
        put_sheet(path, table)
    else:
        put(path, table, *(("\t",) if ending == "tsv" else (",", "utf-8", csv.QUOTE_MINIMAL)))
    result = make(path.name)
    assert (result.files[0].columns, result.files[0].rows) == ({"fra": "fr", "eng": "en"}, ROWS)
    assert result.files[0].left_out == {"repeated header": 1}
    assert {tuple(row) for part in split_rows(tmp_path).values() for row in part} <= set(rows)


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_rows_of_more_fields_than_the_header_are_said_with_the_first_of_them(make, text, ending, delimiter):
    ragged = [(fra, "oui", eng) if i % 2 else (fra, eng) for i, (fra, eng) in enumerate(pairs(text, "fra", "eng"))]
    clean = [[field.replace(",", "") for field in row] for row in ragged]
    put(make.folder / f"a.{ending}", [("fr", "en"), *clean], delimiter)
    count = ROWS // 2
    words = rf"{count} of {ROWS} rows are broken \({count} column count\).*a\.{ending}:3: 3 columns in .*line 1 has 2"
    with pytest.raises(DataError, match=words):
        make(f"a.{ending}")


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_a_few_quotation_marks_that_are_not_escaped_cost_their_rows_alone(make, text, tmp_path, ending, delimiter):
    rows = pairs(text, "fra", "eng")
    lines = [delimiter.join(f'"{field}"' for field in row) for row in [("fr", "en"), *rows]]
    for i in range(5, 50, 9):
        lines[i] = lines[i].replace('"', '"Il dit "oui" ', 1)
    (make.folder / f"a.{ending}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = make(f"a.{ending}")
    assert (result.files[0].rows, result.files[0].left_out) == (ROWS - 5, {"not CSV": 5})
    assert {tuple(row) for part in split_rows(tmp_path).values() for row in part} <= set(rows)


def test_a_pair_of_too_few_rows_is_left_out_and_the_others_stay(make, text):
    rows = [(fra, eng, "fr", "en") for fra, eng in pairs(text, "fra", "eng")[:200]]
    rows += [(rus, eng, "ru", "en") for rus, eng in pairs(text, "rus", "eng")[200:230]]
    put(make.folder / "a.tsv", [("source", "target", "source_lang", "target_lang"), *rows])
    result = make("a.tsv")
    assert set(result.splits) == {"fra-eng"}
    assert any("rus-eng: 30 different rows" in note and "at least 100" in note for note in result.notes)


@pytest.mark.parametrize(("columns", "tags"), [({}, False), ({"fra": "fra", "eng": "eng"}, True)])
@pytest.mark.parametrize("others", [40, 110])
def test_many_rows_in_another_language_are_left_out_counted_and_said(make, text, others, columns, tags):
    rows = [(fra, eng, "fr", "en") for fra, eng in pairs(text, "fra", "eng")[:120]]
    rows += [(rus, eng, "ru", "en") for rus, eng in pairs(text, "rus", "eng")[120 : 120 + others]]
    width = 4 if tags else 2
    put(make.folder / "a.tsv", [row[:width] for row in [("fra", "eng", "lang1", "lang2"), *rows]])
    result = make("a.tsv", columns=columns)
    assert (result.files[0].rows, result.files[0].left_out) == (120, {"in another language": others})
    words = ("fra reads as rus", f"; {others} of {len(rows)} rows left")
    assert sum(all(each in note for each in words) for note in result.notes) == (others / len(rows) > 0.4)


def test_rows_that_are_wrong_on_both_sides_are_counted_once(make, text):
    rows = pairs(text, "fra", "eng")[:120] + pairs(text, "rus", "kor")[120:]
    others = len(rows) - 120
    put(make.folder / "a.tsv", [("fra", "eng"), *rows])
    result = make("a.tsv", columns={"fra": "fra", "eng": "eng"})
    assert result.files[0].left_out == {"in another language": others}
    (note,) = [note for note in result.notes if "reads as" in note]
    assert "fra reads as rus" in note
    assert f"and eng reads as kor {others / len(rows):.0%}; {others} of {len(rows)} rows left out" in note


def test_a_column_in_another_language_is_said_if_the_sampled_rows_hide_it(make, text, tmp_path):
    fine = [(fra, eng) for fra, eng in pairs(text, "fra", "eng")[:20]]
    rows = [*fine * 20, *((f"{rus} {i}", f"{eng} {i}") for i in range(20) for rus, eng in pairs(text, "rus", "eng"))]
    put(make.folder / "a.tsv", [("fra", "eng"), *rows])
    assert any("fra reads as rus" in note and "4,800 of 5,200 rows kept" in note for note in make("a.tsv").notes)


@pytest.mark.parametrize("tags", [("en", "en"), ("unknown", "en"), ("unknown", "unknown"), ("", "en"), ("de", "en")])
def test_a_few_rows_with_odd_tags_are_counted_and_cost_no_other_row(make, text, tags):
    rows = [(fra, eng, "fr", "en") for fra, eng in pairs(text, "fra", "eng")[:120]]
    rows += [(rus, eng, "ru", "en") for rus, eng in pairs(text, "rus", "eng")[120:]]
    odd = [(text["eng"][0], text["eng"][0], *tags), (text["eng"][1], text["eng"][1], *tags)]
    put(make.folder / "a.tsv", [("a", "b", "lang1", "lang2"), *odd, *rows])
    result = make("a.tsv")
    assert [(set(file.columns), file.rows) for file in result.files] == [({"fra", "eng"}, 120), ({"eng", "rus"}, 120)]
    assert result.files[0].left_out == {"no two languages" if all(tags) else "empty side": 2}


def zipped(content):
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("a.csv", content)
    return buffer.getvalue()


PACKS = {
    "a.csv.bz2": bz2.compress,
    "a.csv.XZ": lzma.compress,
    "a.csv.zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    "a.csv.zip": zipped,
    "data.zip": zipped,
}


@pytest.mark.parametrize("name", PACKS)
def test_broken_rows_of_a_packed_table_are_counted_whatever_packs_it(make, text, name):
    rows = [[field.replace(",", "") for field in row] for row in pairs(text, "fra", "eng")]
    lines = ["fr,en", *(",".join(row if i % 12 else [*row, "", "x"]) for i, row in enumerate(rows))]
    (make.folder / name).write_bytes(PACKS[name]("\n".join(lines).encode()))
    with pytest.raises(DataError, match=r"20 of 240 rows are broken \(20 column count\)"):
        make(name)


def test_files_of_lines_belong_together_however_each_is_packed(make, text):
    packs = {"talks.fra.xz": lzma.compress, "talks.eng.bz2": bz2.compress, "talks.rus": bytes}
    for name, pack in packs.items():
        (make.folder / name).write_bytes(pack("\n".join(text[name.split(".")[1]]).encode()))
    (group,) = collect([read_table(str(make.folder / name)) for name in packs], {}).tables
    assert group.languages == ("fra", "eng", "rus")


def test_a_memory_of_one_unit_that_is_too_long_says_so(make):
    unit = f'<tu><tuv xml:lang="fr"><seg>{"x" * 2_000_000}</seg></tuv><tuv xml:lang="en"><seg>y</seg></tuv></tu>'
    (make.folder / "a.tmx").write_text(f'<tmx version="1.4"><header/><body>{unit}</body></tmx>', encoding="utf-8")
    with pytest.raises(DataError, match=r"1 of 1 units are broken \(1 too long\)"):
        make("a.tmx")


def test_the_bundled_teacher_refuses_other_languages_and_names_codes_that_are_none():
    with pytest.raises(DataError, match=r"your text is in fra, zzq \(zzq: no code of ISO 639\); name a teacher"):
        teacher_of(None, ["fra", "zzq"], [])
    with pytest.raises(DataError, match=r"your text is in fra, deu; name a teacher"):
        teacher_of(None, ["fra", "deu"], [])
