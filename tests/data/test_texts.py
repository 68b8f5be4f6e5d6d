"""A sequence of texts is a list of strings in all but memory: in Arrow arrays, files, views and batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babeltune.data import texts
from babeltune.data.prepared import texts_in
from babeltune.data.store import digest_of_texts
from babeltune.data.texts import TableWriter, Texts, batches, text_hashes, write_texts
from babeltune.errors import StoreError
from small_parts import tiny_parts

STRINGS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=40)


@pytest.mark.slow
@given(STRINGS, st.data())
def test_texts_are_those_of_a_list(strings, data):
    bound = st.none() | st.integers(-45, 45)
    place = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1])))
    ids = np.array(data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=30)) if strings else [], np.int64)
    chosen = [strings[i] for i in ids]
    with tiny_parts():
        for stored in (Texts.of(strings), write_texts(batches(iter(strings)))):
            assert stored == strings
            assert strings == stored
            assert (len(stored), stored[:], list(stored)) == (len(strings), strings, strings)
            assert stored[place] == strings[place]
            assert [stored[i] for i in range(len(stored))] == strings
            assert stored.at(ids) == chosen
            assert stored.at(ids).at(np.arange(len(ids))[::-1]) == chosen[::-1]
            assert stored.lengths().tolist() == [len(text) for text in strings]
            assert digest_of_texts(stored) == digest_of_texts(strings)


@given(STRINGS)
def test_hashes_are_equal_for_equal_texts_of_one_language(strings):
    with tiny_parts():
        hashes = text_hashes(Texts.of(strings), "fra").tolist()
    assert len(set(zip(strings, hashes, strict=True))) == len(set(strings)) == len(set(hashes))
    assert not set(hashes) & set(text_hashes(Texts.of(strings), "eng").tolist())


def test_texts_beyond_the_bound_of_memory_are_read_from_a_file(monkeypatch):
    monkeypatch.setattr(texts, "LARGE_TEXTS_BYTES", 1000)
    writer = TableWriter(2)
    rows = [(f"é{number}" * (number % 5), f"{number}") for number in range(25_000)]
    for row in rows:
        writer.add(row)
    left, right = writer.done()
    assert left == [row[0] for row in rows]
    assert right[24_990:] == [row[1] for row in rows[24_990:]]


def test_coded_texts_are_read_by_their_codes():
    languages = Texts.coded(["eng", "fra"], np.array([1, 0, 1], np.int16))
    assert languages == ["fra", "eng", "fra"]
    assert languages.at(np.array([1])) == ["eng"]
    assert digest_of_texts(languages) == digest_of_texts(["fra", "eng", "fra"])


def test_saved_texts_are_read(tmp_path):
    Texts.of(["Oui.", "", "아니", "more"]).at(np.array([0, 3])).save(tmp_path / "texts.arrow")
    assert texts_in(tmp_path) == ["Oui.", "more"]


def test_a_damaged_file_of_texts_is_one_line_with_the_way_on(tmp_path):
    with pytest.raises(StoreError, match=r"texts\.arrow is damaged or gone .*submit the sweep again"):
        texts_in(tmp_path)
    (tmp_path / "texts.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(StoreError, match=r"texts\.arrow is damaged or gone"):
        texts_in(tmp_path)
