"""What is dropped, what is kept, and that subsets are nested."""

import builtins
import gzip
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babeltune.apps.filtering import select
from babeltune.apps.filtering.select import CandidatePairs, Ranked, read_pairs
from babeltune.errors import DataError


def pairs(*rows):
    source, target = map(list, zip(*rows, strict=True)) if rows else ([], [])
    return CandidatePairs(source=source, target=target, read=len(rows), digest="")


def test_two_columns_or_two_names(tmp_path):
    plain = tmp_path / "plain.tsv"
    plain.write_text("un chat\ta cat\nun chien\ta dog\n")
    noisy = read_pairs(str(plain), None)
    assert (noisy.source, noisy.target, noisy.read) == (["un chat", "un chien"], ["a cat", "a dog"], 2)
    packed = tmp_path / "named.tsv.gz"
    packed.write_bytes(gzip.compress(b"id\teng\tfra\n0\ta cat\tun chat\n1\t\tun chien\n" + b"2\ta cat\tun chat\n" * 20))
    with pytest.raises(DataError, match=r"named\.tsv\.gz:3: empty side.*leave such rows out with --on-error drop"):
        read_pairs(str(packed), ("fra", "eng"))
    noisy = read_pairs(str(packed), ("fra", "eng"), drop=True)
    assert (noisy.source, noisy.target, noisy.read) == (["un chat"] * 21, ["a cat"] * 21, 22)
    assert noisy.dropped == {"empty side": 1}
    plain.write_text("un chat\ta cat\nun chien\n" * 2)
    with pytest.raises(DataError, match=r"2 of 4 rows are broken \(2 column count\), more than 5%"):
        read_pairs(str(plain), None, drop=True)
    with pytest.raises(DataError, match="no column 'deu'"):
        read_pairs(str(packed), ("deu", "eng"))
    (tmp_path / "empty.tsv").write_text("fra\teng\n")
    with pytest.raises(DataError, match="has a header and no rows: fra, eng"):
        read_pairs(str(tmp_path / "empty.tsv"), ("fra", "eng"))


def test_every_reason_is_counted():
    given_pairs = pairs(("a", "x"), ("b", "y"), ("a", "x"), ("a", "y"), ("c", "Z !"))
    remaining = select.without_repetitions(given_pairs)
    assert list(zip(remaining.source, remaining.target, strict=True)) == [
        ("a", "x"),
        ("b", "y"),
        ("a", "y"),
        ("c", "Z !"),
    ]
    remaining = select.without_test(remaining, pairs(("q", "z"), ("B.", "r")))
    assert remaining.source == ["a", "a"]
    remaining, languages = select.without_english(remaining, ["fr"])
    assert languages == {"fr": 2}
    none, languages = select.without_english(remaining, ["en"])
    assert len(none) == 0
    assert dict(none.dropped) == {"repeated pair": 1, "a side is in the test file": 2, "English source": 2}
    assert none.read == 5


@pytest.mark.slow
def test_english_is_recognised_among_the_languages_that_are_sensible():
    texts = ["The cat sleeps on the old sofa.", "Le chat dort sur le vieux canapé.", "ok"]
    given_pairs = pairs(*((text, "x") for text in texts[:2]), ("ភាសាខ្មែរ", "x"))
    assert select.without_english(given_pairs, None)[1] == {"en": 1, "fr": 1, "km": 1}
    assert select.without_english(given_pairs, select.checked_languages(["km"]))[1] == {"en": 2, "km": 1}
    assert select.checked_languages(["khm", "German"]) == ("km", "de", "en")
    with pytest.raises(DataError, match=r"knows no language 'kmh'; write codes, such as fr,de"):
        select.checked_languages(["kmh"])


def test_without_sacrebleu_the_error_names_the_installation(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.partition(".")[0] == "sacrebleu":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    from babeltune.apps.filtering.translate import scorers

    with pytest.raises(DataError, match=r"pip install 'babeltune\[translation\]'"):
        scorers()


def test_ranking_is_stable_and_leaves_out_what_has_no_margin():
    ranked, left = select.rank(pairs(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")), np.array([1.0, np.nan, 2.0, 1.0]))
    assert ranked == Ranked(source=["c", "a", "d"], target=["3", "1", "4"], scores=[2.0, 1.0, 1.0])
    assert dict(left.dropped) == {"no margin: a zero vector, or no positive neighbourhood": 1}


@given(st.lists(st.integers(1, 5), max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_subsets_are_the_longest_beginnings_that_fit(lengths, sizes):
    ranked = Ranked(source=["x"] * len(lengths), target=["w " * n for n in lengths], scores=[1.0] * len(lengths))
    counts = []
    for size in sorted(sizes):
        count, tokens = select.subset(ranked, size)
        assert tokens == sum(lengths[:count]) <= size
        assert count == len(lengths) or sum(lengths[: count + 1]) > size
        counts.append(count)
    assert counts == sorted(counts)


def test_a_subset_is_written_with_its_scores(tmp_path):
    ranked = Ranked(source=["a", "b"], target=["x y", "z"], scores=[1.25, 1.0])
    assert [asdict(subset) for subset in select.write_subsets(tmp_path, ranked, [1, 2])] == [
        {"limit": 1, "file": "top-1.tsv", "pairs": 0, "tokens": 0, "lowest_score": None},
        {"limit": 2, "file": "top-2.tsv", "pairs": 1, "tokens": 2, "lowest_score": 1.25},
    ]
    broken = Ranked(source=["a\tb", "c"], target=["x\ny", "z\u2028z"], scores=[1.25, 1.0])
    (tmp_path / "broken").mkdir()
    select.write_subsets(tmp_path / "broken", broken, [9])
    lines = (tmp_path / "broken" / "top-9.tsv").read_text().splitlines()
    assert lines == ["1.250000\ta b\tx y", "1.000000\tc\tz z"], "a text is one field of one line"
    assert (tmp_path / "top-1.tsv").read_text() == ""
    assert (tmp_path / "top-2.tsv").read_text() == "1.250000\ta\tx y\n"
