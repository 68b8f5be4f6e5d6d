"""The published formats, written here in small."""

import gzip
import os

import pytest

from babeltune.apps.transfer.formats import LABELS, read_examples
from babeltune.errors import DataError

XNLI_HEADER = (
    "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1"
    "\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tsentence1_tokenized"
    "\tsentence2_tokenized\tmatch\n"
)


def xnli_row(language, label, left, right):
    votes = "\t".join([label] * 5)
    return f"{language}\t{label}\tp\tp\tp\tp\t{left}\t{right}\t1\t1\tfacetoface\t{votes}\t{left}\t{right}\tTrue\n"


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def named(task, examples):
    return [tuple(LABELS[task][i] for i in row) for row in examples.labels]


def test_xnlis_release_holds_all_languages_in_one_file(tmp_path):
    rows = [
        xnli_row("en", "neutral", 'He said "no".', "He spoke."),
        xnli_row("fr", "contradiction", "Il dort.", "Il court."),
        xnli_row("en", "entailment", "He ran.", "He moved."),
    ]
    path = written(tmp_path / "xnli.test.tsv", XNLI_HEADER + "".join(rows))
    english = read_examples(path, "xnli", "en")
    assert english.inputs == [('He said "no".', "He spoke."), ("He ran.", "He moved.")]
    assert named("xnli", english) == [("neutral",), ("entailment",)]
    assert named("xnli", read_examples(path, "xnli", "fr")) == [("contradiction",)]
    with pytest.raises(DataError, match=r"no rows of language 'de'; languages: en, fr"):
        read_examples(path, "xnli", "de")


def test_xnlis_training_set_spells_a_label_otherwise(tmp_path):
    text = "premise\thypo\tlabel\nA b .\tC d .\tcontradictory\nE .\tF .\tneutral\n"
    examples = read_examples(written(tmp_path / "multinli.train.en.tsv", text), "xnli", "en")
    assert named("xnli", examples) == [("contradiction",), ("neutral",)]


def test_xtremes_parts_of_speech_and_pairs_have_no_header_and_its_line_ends(tmp_path):
    examples = read_examples(written(tmp_path / "dev-en.tsv", "#\tSYM\nThe\tDET\ncat\tNOUN\n\nIt\tPRON"), "pos", "en")
    assert examples.inputs == [("#", "The", "cat"), ("It",)]
    assert named("pos", examples) == [("SYM", "DET", "NOUN"), ("PRON",)]
    path = tmp_path / "dev-fr.tsv"
    path.write_bytes(gzip.compress(b"Il dort.\tIl court.\tcontradiction\r\nA.\tB.\tentailment\r\n"))
    examples = read_examples(str(path), "xnli", "fr")
    assert examples.inputs == [("Il dort.", "Il court."), ("A.", "B.")]
    assert named("xnli", examples) == [("contradiction",), ("entailment",)]


def test_xtremes_test_files_without_labels_are_refused_by_name(tmp_path):
    path = written(tmp_path / "test-fr.tsv", "Il dort.\tIl court.\n")
    with pytest.raises(DataError, match="withhold the labels: take the original release's test file"):
        read_examples(path, "xnli", "fr")
    words = written(tmp_path / "test-de.tsv", "Das\nist\n\n")
    with pytest.raises(DataError, match="withhold the labels"):
        read_examples(words, "pos", "de")


def test_paws_x_has_an_id_and_a_header(tmp_path):
    text = "id\tsentence1\tsentence2\tlabel\n1\tA b.\tB a.\t0\n2\tC.\tC!\t1\n"
    for name in ("translated_train.tsv", "test_2k.tsv"):
        examples = read_examples(written(tmp_path / name, text), "pawsx", "de")
        assert examples.inputs == [("A b.", "B a."), ("C.", "C!")]
        assert named("pawsx", examples) == [("0",), ("1",)]


def test_a_broken_row_stops_or_is_counted(tmp_path):
    text = "A.\tB.\tneutral\nC.\tneutral\nD.\t\tneutral\nE.\tF.\t-\n" + "G.\tH.\tneutral\n" * 60
    path = written(tmp_path / "train.tsv", text)
    words = r"train\.tsv:2: column count: 2 columns.*or leave such rows out with --on-error"
    with pytest.raises(DataError, match=words):
        read_examples(path, "xnli", "en")
    examples = read_examples(path, "xnli", "en", drop=True)
    assert examples.dropped == {"column count": 1, "empty side": 1, "no gold label": 1}
    assert len(examples) == 61
    empty = written(tmp_path / "none.tsv", "E.\tF.\t-\n")
    with pytest.raises(DataError, match="no rows left; dropped: 1 no gold label"):
        read_examples(empty, "xnli", "en", drop=True)


@pytest.mark.parametrize("drop", [False, True])
def test_an_unknown_label_is_always_an_error(tmp_path, drop):
    path = written(tmp_path / "train.tsv", "A.\tB.\tentailed\n")
    with pytest.raises(DataError, match=r"train\.tsv:1: unknown label 'entailed' for xnli; did you mean 'entailment'"):
        read_examples(path, "xnli", "en", drop=drop)
    words = written(tmp_path / "train", "en:Bob\tB-PER\nen:ran\tB-MISC\n")
    with pytest.raises(DataError, match=r"train:2: unknown label 'B-MISC' for ner"):
        read_examples(words, "ner", "en", drop=drop)


def test_pan_x_has_its_language_before_each_token(tmp_path):
    text = "fr:Paris\tB-LOC\nfr::\tO\nfr:12:30\tO\n\nfr:ONU\tB-ORG\n\n"
    examples = read_examples(written(tmp_path / "test", text), "ner", "fr")
    assert examples.inputs == [("Paris", ":", "12:30"), ("ONU",)]
    assert named("ner", examples) == [("B-LOC", "O", "O"), ("B-ORG",)]
    plain = written(tmp_path / "dev-fr.tsv", text.replace("fr:", ""))
    assert read_examples(plain, "ner", "fr").inputs == examples.inputs


def test_a_sentence_with_a_broken_line_goes_as_a_whole(tmp_path):
    text = "fr:A\tO\n\nfr:B\tO\nC\tO\n\nfr:D\tO\textra\n\nfr: \tO\nfr:E\tO\n" + "\nfr:F\tO\n" * 60
    path = written(tmp_path / "test", text)
    with pytest.raises(DataError, match=r"test:4: language: 'C' does not begin with 'fr:'"):
        read_examples(path, "ner", "fr")
    examples = read_examples(path, "ner", "fr", drop=True)
    assert examples.inputs == [("A",), *[("F",)] * 60]
    assert examples.dropped == {"language": 1, "column count": 1, "empty token": 1}
    (tmp_path / "bytes").write_bytes(b"A\tO\n\xff\tO\n" + b"\nB\tO\n" * 20)
    assert read_examples(str(tmp_path / "bytes"), "ner", "fr", drop=True).dropped == {"not UTF-8": 1}


DIGITS = "9" * 5000  # more than Python makes a number of


def conllu(*rows):
    return "".join(
        f"{number}\t{form}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_\n" if number else "\n" for number, form, tag, head in rows
    )


def test_conll_u_with_fused_forms_and_empty_nodes(tmp_path):
    text = "# sent_id = 1\n# text = Vámonos al mar\n" + conllu(
        ("1-2", "Vámonos", "_", "_"), (1, "Vamos", "VERB", 0), (2, "nos", "PRON", 1), ("2.1", "x", "X", "_"),
        ("3-4", "al", "_", "_"), (3, "a", "ADP", 5), (4, "el", "DET", 5), (5, "ma r", "NOUN", 1), ("", "", "", ""),
        (1, "می\u200cروم", "VERB", 0),
    )  # fmt: skip
    examples = read_examples(written(tmp_path / "es.conllu", text), "pos", "es")
    assert examples.inputs == [("Vámonos", "al", "mar"), ("میروم",)]
    assert named("pos", examples) == [("VERB", "ADP", "NOUN"), ("VERB",)]
    near = conllu(("1-2", "ab", "_", "_"), (1, "a", "ADP", 2), (2, "b", "NOUN", 3), (3, "c", "VERB", 0))
    examples = read_examples(written(tmp_path / "x", near), "pos", "xx")
    assert named("pos", examples) == [("NOUN", "VERB")], "the part nearest to the root gives a fused form its tag"


def test_what_is_broken_in_conll_u(tmp_path):
    def faults(*rows):
        path = written(tmp_path / "x.conllu", conllu(*[(1, "a", "X", 0), ("", "", "", "")] * 20, *rows))
        return read_examples(path, "pos", "xx", drop=True).dropped

    assert faults((1, "a", "X", 0), (3, "b", "X", 1)) == {"word number": 1}
    assert faults(("1-3", "ab", "_", "_"), (1, "a", "X", 0), (2, "b", "X", 1)) == {"word number": 1}
    assert faults((1, "_", "X", 0), (2, "_", "X", 1)) == {"withheld words": 1}
    assert faults((1, "a\tb", "X", 0)) == {"column count": 1}
    assert faults((f"1-{DIGITS}", "ab", "_", "_"), (1, "a", "X", 0)) == {"word number": 1}
    assert faults((1, "a", "X", "²"), (2, "b", "X", DIGITS)) == {}


def test_a_pipe_is_refused_because_its_beginning_would_be_lost(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe, socket or device, not a file; write what it gives into a file"):
        read_examples(str(tmp_path / "pipe"), "xnli", "en")
