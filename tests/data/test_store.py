"""Stores: built once whoever asks, whole or absent, and repaired when something on disk changed."""

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from babeltune.data import store, stored_arrays
from babeltune.data.shards import read_texts, run_here
from babeltune.data.store import Array, Contents, build, digest_of_texts, folder_of, key_of, read_store
from babeltune.data.store_shards import DONE, ShardWork, array_of, make_shards, record_names, shard_files, write_shard
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.texts import Texts
from babeltune.errors import StoreError
from babeltune.stages import uncounted
from kills import killed_at
from waiting import PATIENCE_S, wait_until

DESCRIPTION = {"texts": "abc", "max_tokens": 16}
ROWS = np.arange(60, dtype="<f2").reshape(20, 3)


def write_rows(folder, shards=(8, 12)):
    start, files = 0, []
    for number, rows in enumerate(shards):
        name = f"rows-{number}.bin"
        ROWS[start : start + rows].tofile(folder / name)
        files.append((name, rows))
        start += rows
    return Contents(arrays={"rows": Array("<f2", 3, tuple(files))}, facts={"forwarded": 20})


def build_rows(root):
    return build(root, "teacher", DESCRIPTION, write_rows)


def refuse(folder):
    raise AssertionError("a sound store must not be built again")


def leftovers(root):
    return sorted(p.name for p in root.iterdir() if p.is_dir() and p.name.startswith("."))


def race(root, barrier, name):
    def write(folder):
        (root / f"built-by-{name}").touch()
        time.sleep(0.5)
        return write_rows(folder)

    barrier.wait(PATIENCE_S)
    folder = build(root, "teacher", DESCRIPTION, write)
    (root / f"read-by-{name}").write_text(str(open_matrix(folder).rows(np.arange(20)).sum()))


def stall(root):
    def write(folder):
        write_rows(folder)
        (root / "started").touch()
        threading.Event().wait()

    build(root, "teacher", DESCRIPTION, write)


def test_a_key_does_not_depend_on_the_order_of_the_description():
    expected = hashlib.sha256(b'{"a":1,"b":"\\u00e9"}').hexdigest()
    assert key_of({"b": "é", "a": 1}) == key_of({"a": 1, "b": "é"}) == expected


def test_the_digest_of_texts_sees_where_one_text_ends():
    assert digest_of_texts(["ab", "c"]) != digest_of_texts(["a", "bc"])
    assert digest_of_texts(["a", "b"]) != digest_of_texts(["b", "a"])


def test_a_store_is_built_once_for_a_description_on_record_and_read_across_shards(tmp_path):
    folder = build_rows(tmp_path)
    assert folder == build(tmp_path, "teacher", DESCRIPTION, refuse) == folder_of(tmp_path, "teacher", DESCRIPTION)
    matrix = open_matrix(folder, verify=True)
    ids = np.array([19, 0, 8, 7, 7])
    assert np.array_equal(matrix.rows(ids), ROWS[ids])
    assert matrix.rows(ids).dtype == np.float16
    assert (len(matrix), matrix.width) == (20, 3)
    assert store.facts_of(folder) == {"forwarded": 20}
    assert matrix.rows(np.array([], int)).shape == (0, 3)
    record = json.loads((folder / "store.json").read_text())
    assert (record["description"], record["rows"]) == (DESCRIPTION, {"rows": 20})
    data = (folder / "rows-1.bin").read_bytes()
    assert record["files"]["rows-1.bin"] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert build(tmp_path, "teacher", {**DESCRIPTION, "max_tokens": 17}, write_rows) != folder


def test_an_order_array_gives_each_row_its_place(tmp_path):
    order = np.arange(20, dtype="<i8")[::-1]

    def write(folder):
        order.tofile(folder / "order.bin")
        contents = write_rows(folder)
        return Contents(arrays={**contents.arrays, "order": Array("<i8", 0, (("order.bin", 20),))})

    matrix = open_matrix(build(tmp_path, "teacher", DESCRIPTION, write))
    assert np.array_equal(matrix.rows(np.arange(20)), ROWS[::-1])


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_that_does_not_exist_is_refused(tmp_path, row):
    with pytest.raises(StoreError, match=f"row {row} is not among the store's rows 0 to 19"):
        open_matrix(build_rows(tmp_path)).rows(np.array([3, row]))


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=12), st.data())
def test_ragged_rows_are_taken_like_lists(tmp_path_factory, rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    shards = [rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(rows)])]

    def write(folder):
        arrays = {"values": [], "offsets": []}
        for number, shard in enumerate(shards):
            values = np.array([v for row in shard for v in row], "<u2")
            offsets = np.cumsum([0] + [len(row) for row in shard]).astype("<i8")
            for name, array in (("values", values), ("offsets", offsets)):
                array.tofile(folder / f"{name}-{number}.bin")
                arrays[name].append((f"{name}-{number}.bin", len(array)))
        return Contents(
            arrays={
                "values": Array("<u2", 0, tuple(arrays["values"])),
                "offsets": Array("<i8", 0, tuple(arrays["offsets"])),
            }
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_arrays, "SMALL", data.draw(st.sampled_from([0, 1 << 20])))
        ragged = open_ragged(build(tmp_path_factory.mktemp("ragged"), "tokens", {}, write))
    ids = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    flat, lengths = ragged.take(np.array(ids, int))
    assert len(ragged) == len(rows)
    assert flat.tolist() == [v for i in ids for v in rows[i]]
    assert lengths.tolist() == ragged.lengths(np.array(ids, int)).tolist() == [len(rows[i]) for i in ids]
    assert ragged.lengths().tolist() == [len(row) for row in rows]


@pytest.mark.slow
def test_two_racing_processes_build_a_store_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    racers = [spawn.Process(target=race, args=(tmp_path, barrier, name)) for name in "ab"]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(PATIENCE_S)
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert len(list(tmp_path.glob("built-by-*"))) == 1
    assert [p.read_text() for p in sorted(tmp_path.glob("read-by-*"))] == [str(ROWS.sum())] * 2
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_killed_builder_leaves_no_lock_and_no_half_store(tmp_path):
    builder = multiprocessing.get_context("spawn").Process(target=stall, args=(tmp_path,))
    builder.start()
    wait_until((tmp_path / "started").exists)
    os.kill(builder.pid, signal.SIGKILL)
    builder.join(PATIENCE_S)
    assert len(leftovers(tmp_path)) == 1
    assert not folder_of(tmp_path, "teacher", DESCRIPTION).exists()
    assert np.array_equal(open_matrix(build_rows(tmp_path)).rows(np.arange(20)), ROWS)
    assert leftovers(tmp_path) == []


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
@pytest.mark.parametrize("name", ["rows-1.bin", "store.json"])
def test_a_damaged_store_is_noticed_and_rebuilt(tmp_path, caplog, damage, name):
    folder = build_rows(tmp_path)
    build_rows(tmp_path)
    damage(folder / name)
    assert build_rows(tmp_path) == folder
    assert "is damaged" in caplog.text
    assert np.array_equal(open_matrix(folder, verify=True).rows(np.arange(20)), ROWS)
    assert leftovers(tmp_path) == []


TEXTS = [f"text {number}" for number in range(9)]


def note_shard(source, out, log):
    """Writes the lengths of a shard's texts, and then notes that the shard was made."""
    texts = read_texts(source)
    write_shard(Path(out), texts, truncated=0, lengths=np.array([len(text) for text in texts], "<i4"))
    with Path(log).open("a") as noted:
        noted.write(f"{Path(out).name}\n")
    return len(texts)


def build_shards(root, log):
    """A store of three shards."""

    def write(folder):
        work = ShardWork(note_shard, lambda source, out: (source, out, str(log)), run_here, uncounted, "made")
        records = make_shards(folder, Texts.of(TEXTS), np.split(np.arange(len(TEXTS)), 3), work)
        np.arange(len(TEXTS), dtype="<i8").tofile(folder / "order.bin")
        arrays = {"lengths": array_of(records, "lengths", "<i4"), "order": Array("<i8", 0, (("order.bin", 9),))}
        return Contents(arrays=arrays, files=shard_files(records), shard_records=record_names(records))

    return build(root, "shards", DESCRIPTION, write, resumable=True)


@pytest.mark.slow
def test_a_builder_that_is_killed_at_any_moment_makes_no_shard_again(tmp_path):
    for change in itertools.count(1):
        root, log = tmp_path / str(change), tmp_path / f"{change}.txt"
        killed = killed_at(change, lambda: build_shards(root, log))  # noqa: B023
        folder = build_shards(root, log)
        shards = log.read_text().split()
        assert len(shards) == len(set(shards)), f"made again after a kill at change {change}"
        files = {path.name for path in folder.iterdir()} - read_store(folder, verify=True).files.keys() - {store.RECORD}
        assert all(name.endswith(DONE) for name in files)
        if not killed:
            break
    assert change > 10
    assert not files


def test_an_altered_record_is_noticed(tmp_path):
    folder = build_rows(tmp_path)
    record = (folder / "store.json").read_text()
    (folder / "store.json").write_text(record.replace('"forwarded": 20', '"forwarded": 21'))
    with pytest.raises(StoreError, match=r"store\.json was altered"):
        open_matrix(folder)
    assert store.facts_of(build_rows(tmp_path)) == {"forwarded": 20}


def test_a_reader_notices_a_short_shard_at_once_and_a_flipped_byte_when_it_verifies(tmp_path):
    folder = build_rows(tmp_path)
    flip_a_byte(folder / "rows-0.bin")
    open_matrix(folder)
    with pytest.raises(StoreError, match=r"rows-0\.bin does not have the recorded SHA-256"):
        open_matrix(folder, verify=True)
    truncate(folder / "rows-0.bin")
    with pytest.raises(StoreError, match=r"rows-0\.bin has 47 bytes, not 48"):
        open_matrix(folder)


def test_reading_a_store_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(StoreError, match="submit the sweep again"):
        open_matrix(tmp_path / "teacher-0")


@pytest.mark.slow
def test_a_shard_that_its_writer_cut_short_is_never_published(tmp_path):
    def write(folder):
        contents = write_rows(folder)
        truncate(folder / "rows-1.bin")
        return contents

    with pytest.raises(StoreError, match=r"should hold 12 rows in 72 bytes, but has 71 bytes"):
        build(tmp_path, "teacher", DESCRIPTION, write)
    assert not folder_of(tmp_path, "teacher", DESCRIPTION).exists()
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_builder_that_fails_leaves_nothing(tmp_path):
    def write(folder):
        write_rows(folder)
        raise ValueError("teacher fell over")

    with pytest.raises(ValueError, match="fell over"):
        build(tmp_path, "teacher", DESCRIPTION, write)
    assert leftovers(tmp_path) == []
    assert build_rows(tmp_path).exists()


def test_a_store_larger_than_the_disk_is_refused_before_it_is_written(tmp_path):
    with pytest.raises(StoreError, match=r"needs about 1000000000\.00 GB, but .* free; free space"):
        build(tmp_path, "teacher", DESCRIPTION, refuse, bytes_needed=10**18)


@pytest.mark.slow
def test_a_full_disk_is_reported_with_folder_size_and_next_step(tmp_path):
    def write(folder):
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")
        return Contents()

    with pytest.raises(StoreError, match=r"teacher-.*No space left.*needs about 0\.50 MB.*choose another"):
        build(tmp_path, "teacher", DESCRIPTION, write, bytes_needed=500_000)
    assert leftovers(tmp_path) == []


def test_a_checksum_is_computed_once_per_process_and_file_version(tmp_path, monkeypatch):
    folder = build_rows(tmp_path)
    build_rows(tmp_path)
    monkeypatch.setattr(store, "sha256_of", refuse)
    assert build_rows(tmp_path) == folder


def test_an_open_reader_keeps_its_rows_while_the_store_is_rebuilt(tmp_path):
    folder = build_rows(tmp_path)
    matrix = open_matrix(folder)
    (folder / "rows-0.bin").unlink()
    build_rows(tmp_path)
    assert np.array_equal(matrix.rows(np.arange(20)), ROWS)
