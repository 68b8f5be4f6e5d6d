"""Shards of the preparation on nodes that share no folder with the driver's: what travels, and what is in a bucket."""

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from babeltune.data import teacher as teacher_module
from babeltune.data import tokens as tokens_module
from babeltune.data.shards import run_here
from babeltune.data.store import StoredFile, facts_of, read_store, stores_in
from babeltune.data.store_shards import DONE
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.teacher import build_teacher_store
from babeltune.data.tokens import TokenCut, build_token_store, load_tokenizer
from babeltune.errors import StoreError
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.mirror import Mirror
from babeltune.sweep.sync.shards import BucketStores, Carrier, StorePlace, on_a_node
from shared_corpus import run_with_files

TEXTS = [f"sentence {number}" + " and more" * (number % 7) for number in range(70)]


def reverse(number, source, out, text):
    data = Path(source).read_bytes()
    Path(out).write_bytes(data[::-1])
    Path(f"{out}.note").write_text(f"{number}{text}")
    return len(data)


def test_a_shards_files_travel_both_ways(tmp_path):
    (tmp_path / "in.json").write_bytes(b"abc")
    arguments = (7, str(tmp_path / "in.json"), str(tmp_path / "out"), "/not a path of its own")
    count, files = on_a_node(reverse, arguments, Carrier().pack(arguments))
    assert (count, files) == (3, {"out": b"cba", "out.note": b"7/not a path of its own"})
    Carrier().unpack(arguments, files)
    assert (tmp_path / "out").read_bytes() == b"cba"


def test_a_file_that_several_shards_name_is_packed_once(tmp_path):
    for name in ("both", "a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    arguments = [(str(tmp_path / "both"), str(tmp_path / name), "x") for name in ("a", "b")]
    carrier = Carrier().of(arguments)
    assert carrier.pack_shared() == {"both": b"both"}
    assert [carrier.pack(each) for each in arguments] == [{"a": b"a"}, {"b": b"b"}]


# --- Stores ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(teacher_module, "SHARD_ROWS", (16, 16))
    monkeypatch.setattr(tokens_module, "SHARD_ROWS", (16, 16))


@pytest.fixture
def build(tiny, small_shards):
    """Builds a store of vectors and one of tokens in a folder."""
    sweep, prepared = tiny
    (tokens,) = prepared.tokens.values()
    tokenizer = load_tokenizer(sweep.student, Path(tokens.tokenizer))

    def built(place, run_shards):
        vectors = build_teacher_store(place, TEXTS, sweep.teacher, run_shards=run_shards)
        return vectors, build_token_store(place, TEXTS, tokenizer, TokenCut("", 8), run_shards=run_shards)

    return built


class Machine:
    """A driver's machine, or a node, with a mirror of its own."""

    def __init__(self, uri, folder):
        self.where = StorageLocation(uri=uri, cache=str(folder), timeout=20)
        self.mirror = Mirror(self.where)
        self.stores = self.mirror.folder / "stores"
        self.came_back, self.rows = 0, 0

    def on_disk(self):
        return [path.name for path in self.stores.iterdir() if path.suffix != ".lock"]

    def shares_stores(self):
        return stores_in(BucketStores(self.mirror, lambda request: request(), takes_shards=True))

    def run(self, function, arguments, *, gpu=False):
        """As Ray tasks on nodes that see none of the driver's folders."""
        carrier = Carrier(self.where).of(arguments)
        for each in arguments:
            packed = carrier.pack(each), carrier.pack_shared()
            count, files = on_a_node(function, each, *packed, carrier.place(each))
            carrier.unpack(each, files)
            self.came_back += sum(map(len, files.values()))
            self.rows += count
            yield count

    def cut_off(self, function, arguments, *, gpu=False):
        """Ends after three shards."""
        yield from self.run(function, arguments[:3])
        raise KeyboardInterrupt


@pytest.fixture
def machine(bucket_server, request, tmp_path):
    uri = f"{bucket_server.uri}/{request.node.name.replace('[', '-').strip(']')[-40:]}"
    return lambda name: Machine(uri, tmp_path / name)


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_that_carry_their_files_make_the_same_stores(build, tmp_path):
    here = [read_store(store, verify=True).files for store in build(tmp_path / "here", run_here)]
    assert here == [read_store(store, verify=True).files for store in build(tmp_path / "carried", run_with_files)]


def test_tasks_write_a_store_into_the_bucket_with_the_bytes_of_a_local_one(build, machine, tmp_path):
    local = build(tmp_path / "local", run_here)
    driver, node = machine("driver"), machine("node")
    with driver.shares_stores():
        stores = build(driver.stores, driver.run)
        assert not driver.on_disk(), "no vectors and no tokens came to the driver's disk"
        assert [facts_of(store) for store in stores] == [facts_of(store) for store in local]
        assert not driver.on_disk(), "a record's facts are read alone"
        assert build(driver.stores, driver.run) == stores
    assert driver.rows == 2 * len(TEXTS), "a store that the bucket has is not built again"
    for store, same in zip(stores, local, strict=True):
        assert node.mirror.pull_package(node.mirror.key(node.stores / store.name))
        assert files_in(node.stores / store.name) == files_in(same)
    shards = sum(
        len(read_store(store).arrays[name].shards) for store, name in zip(local, ("rows", "values"), strict=True)
    )
    assert driver.came_back < 800 * shards, "the driver gets a record of each shard"
    with driver.shares_stores():
        ids = np.arange(len(TEXTS))
        assert np.array_equal(open_matrix(stores[0]).rows(ids), open_matrix(local[0]).rows(ids)), (
            "it is brought if read"
        )
        assert np.array_equal(open_ragged(stores[1]).take(ids)[0], open_ragged(local[1]).take(ids)[0])


@pytest.mark.long
@pytest.mark.parametrize("damage", ["nothing", "a shard is gone", "a record is damaged", "a shard is cut off"])
def test_another_machine_goes_on_with_the_shards_that_the_bucket_has(build, machine, tmp_path, damage):
    local = build(tmp_path / "local", run_here)
    one, other = machine("one"), machine("other")
    with one.shares_stores(), pytest.raises(KeyboardInterrupt):
        build(one.stores, one.cut_off)
    key, bucket = one.mirror.key(one.stores / local[0].name), one.mirror.store
    assert not other.mirror.pull_package(key), "an unfinished store is not pulled"
    keys = sorted(bucket.entries(key))
    (first, *_), (record, *_) = ([at for at in keys if at.endswith(end)] for end in (".bin", DONE))
    if damage == "a shard is gone":
        bucket.remove(first)
    elif damage == "a record is damaged":
        bucket.write(record, b"{")
    elif damage == "a shard is cut off":
        bucket.write(first, b"x")
    with other.shares_stores():
        build(other.stores, other.run)
    again = 0 if damage == "nothing" else 1
    stored = len(TEXTS) * 2 - other.rows
    assert one.rows - again * 16 <= stored <= one.made - again * 10
    for store in local:
        assert one.mirror.pull_package(f"stores/{store.name}")
        assert files_in(one.stores / store.name) == files_in(store)
    assert not [at for at in bucket.entries("stores") if at.endswith(DONE)], "a whole store has no records of shards"


def drafts(tmp_path, one, other, key):
    """The drafts of two drivers that have made a store with other bits, each with its record, and their files."""
    for mirror, data in ((one, b"first"), (other, b"other")):
        draft, digest = tmp_path / data.decode(), hashlib.sha256(data).hexdigest()
        draft.mkdir(exist_ok=True)
        (draft / "store.json").write_bytes(b"of " + data)
        name = f"rows-00000-{digest[:16]}.bin"
        mirror.store.write(f"{key}/{name}", data)
        yield draft, {name: sealed(data), "store.json": sealed(b"of " + data)}


def test_of_two_drivers_that_make_a_store_with_other_bits_the_first_ones_stays_whole(machine, tmp_path):
    one, other = machine("one").mirror, machine("other").mirror
    key = "stores/teacher-0123456789abcdef"
    for draft, files in [*drafts(tmp_path, one, other, key)]:
        one.finish_package(key, draft, files)
        assert other.pull_package(key)
        assert set(files_in(other.path(key)).values()) == {b"first", b"of first"}
        assert one.store.read(f"{key}/store.json") == b"of first", "for who reads the record alone"


@pytest.mark.parametrize("number", range(4))
def test_a_driver_that_finishes_a_store_while_another_does_leaves_it_whole(tmp_path, monkeypatch, number):
    """The other one finishes before this request of the first one."""
    uri, key = f"file://{tmp_path}/bucket", "stores/teacher-0123456789abcdef"
    one, other, third = (Mirror(StorageLocation(uri=uri, cache=str(tmp_path / name))) for name in ("a", "b", "c"))
    draft, other_draft = drafts(tmp_path, one, other, key)
    tried, requests = one.store._tried, itertools.count()

    def request(action, send):
        if next(requests) == number:
            other.finish_package(key, *other_draft)
        return tried(action, send)

    monkeypatch.setattr(one.store, "_tried", request)
    one.finish_package(key, *draft)
    assert next(requests) > number
    assert third.pull_package(key)
    first = b"other" if number < 2 else b"first"  # the second request writes the manifest
    assert set(files_in(third.path(key)).values()) == {first, b"of " + first}
    assert one.store.read(f"{key}/store.json") == b"of " + first


def sealed(data):
    return vars(StoredFile(len(data), hashlib.sha256(data).hexdigest()))


def test_a_shard_that_the_bucket_lost_at_the_end_is_an_error_that_says_what_to_do(machine, tmp_path):
    one = machine("one")
    with pytest.raises(StoreError, match=r"has lost 1 file of stores/x, such as rows\.bin; `babeltune resume` makes"):
        one.mirror.finish_package("stores/x", tmp_path, {"rows.bin": sealed(b"abc")})
    assert not one.mirror.pull_package("stores/x")


def test_what_is_no_shard_of_a_store_comes_back_to_the_driver(machine, tmp_path):
    where = replace(machine("driver").where, cache=str(tmp_path))
    of_store = (str(where.folder / "stores" / ".teacher-0.unfinished" / "00000.json"),)
    of_corpus = (str(where.folder / "stores" / ".shards-1" / "000"),)
    assert Carrier(where).place(of_store) == StorePlace(where, "stores/teacher-0")
    assert Carrier(where).place(of_corpus) is None
    assert Carrier().place(of_store) is None
