"""A bucket on a real server of each protocol: what it keeps, what it refuses, and when the server is away."""

import hashlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from babeltune.errors import ClusterError, ObjectStoreError
from babeltune.storage.object_store import ObjectStore, pause_s
from waiting import PATIENCE_S


@pytest.fixture
def store(bucket_server, request):
    return ObjectStore(f"{bucket_server.uri}/{request.node.name.partition('[')[0][:60]}", timeout=20)


@pytest.fixture
def s3_bucket(s3):
    return ObjectStore(f"{s3.uri}/x", timeout=20)


def test_objects_are_written_listed_read_and_removed(store, tmp_path):
    began = time.time()
    store.write("a/one", b"1")
    (tmp_path / "file").write_bytes(b"22")
    store.upload(tmp_path / "file", "a/b/two")
    entries = store.entries("a")
    assert {key: entry.size for key, entry in entries.items()} == {"a/one": 1, "a/b/two": 2}
    assert set(store.entries()) == set(entries)
    assert store.folders("a") == ["b"]
    assert store.read("a/one") == b"1"
    store.download("a/b/two", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"22"
    assert store.sha256("a/b/two") == hashlib.sha256(b"22").hexdigest()
    assert store.sha256("a/three") is None
    store.write("a/one", b"9")
    now = time.time()
    assert all(int(began) <= entry.modified <= now for entry in entries.values())
    assert store.entry("a/one").size == entries["a/one"].size
    assert store.entry("a/one").tag != entries["a/one"].tag, "a change of the same size in the same second is seen"
    store.remove("a/one")
    store.remove("a/one")
    assert store.read("a/one") is None
    assert store.entry("a/one") is None
    assert store.entries("nothing") == {}
    assert store.folders("nothing") == []


def test_reading_an_object_or_asking_for_it_is_one_request(s3_bucket, s3):
    s3_bucket.write("asked/one", b"1")
    for key, content in (("asked/one", b"1"), ("asked/two", None)):
        before = len(s3.door.requests)
        assert s3_bucket.read(key) == content
        assert (s3_bucket.entry(key) is None) == (content is None)
        assert [line.split()[0] for line in s3.door.requests[before:]] == ["GET", "HEAD"]
    s3_bucket.remove("asked/one")


@pytest.mark.parametrize("key", ["../up", "sweeps/../../etc/passwd", "/etc/passwd", "a//b", "a/./b", "a\\b"])
def test_a_key_that_leaves_its_folder_is_refused_whoever_names_it(s3_bucket, s3, key):
    store = s3_bucket
    for use in (store.read, store.remove, store.entry, lambda k: store.write(k, b"")):
        with pytest.raises(ObjectStoreError, match="leaves its folder; remove that object"):
            use(key)
    planted = f"{store.uri.removeprefix(f'{s3.uri}/')}/{key}"
    s3.put(planted, b"evil")
    try:
        with pytest.raises(ObjectStoreError, match="leaves its folder; remove that object"):
            store.entries()
    finally:
        s3.remove(planted)


def test_a_server_that_comes_back_is_used_again(s3_bucket, s3):
    store = s3_bucket
    store.write("before", b"1")
    s3.door.shut()
    back = threading.Timer(2.0, s3.door.open)
    back.start()
    store.write("after", b"2")
    back.join()
    assert set(store.entries()) == {"before", "after"}


def test_a_server_that_stays_away_is_named_with_what_to_do(s3_bucket, s3):
    store = s3_bucket
    s3.door.shut()
    store.timeout = 0.5
    words = rf"{store.uri} cannot be written at a \(.*; start it, or check its address"
    with pytest.raises(ObjectStoreError, match=words):
        store.write("a", b"1")


def test_a_bucket_that_is_not_there_and_credentials_that_are_missing_are_named(s3, monkeypatch):
    with pytest.raises(ObjectStoreError, match=r"s3://nowhere/x is not there .*; create it"):
        ObjectStore("s3://nowhere/x").write("a", b"1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(ObjectStoreError, match="credentials that may read and write there, in its environment"):
        ObjectStore(f"{s3.uri}/x").write("a", b"1")


def test_a_disk_of_this_machine_that_refuses_is_not_taken_for_the_store(s3_bucket):
    store = s3_bucket
    store.write("a", b"1")
    words = r"cannot be read at a \(.*\); make room on this machine, and its folder wri"
    with pytest.raises(ObjectStoreError, match=words):
        store.download("a", Path("/sys/kernel/babeltune"))


def test_a_google_bucket_that_is_not_there_is_named(gs):
    with pytest.raises(ObjectStoreError, match=r"gs://nowhere/x is not there .*; create it"):
        ObjectStore("gs://nowhere/x").write("a", b"1")


def test_a_protocol_that_is_not_installed_or_not_known_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    with pytest.raises(ClusterError, match=r"gs://b/x needs a package .*`pip install 'babeltune\[gs\]'` on every node"):
        ObjectStore("gs://b/x")
    with pytest.raises(ObjectStoreError, match=r"ftp://127.0.0.1/x cannot be reached \(.*\); check its address"):
        ObjectStore("ftp://127.0.0.1/x")
    with pytest.raises(ClusterError, match="xyz://b/x cannot be opened: Protocol not known: xyz"):
        ObjectStore("xyz://b/x")


@pytest.fixture
def conditional(comparing_server):
    """A bucket on a server that compares what a write expects."""
    return ObjectStore(f"{comparing_server.uri}/conditional", timeout=20)


def refuses_other_versions(store):
    first = store.write_if("lease", b"1", None)
    assert store.write_if("lease", b"2", None) is None, "it is there already"
    second = store.write_if("lease", b"2", first.version)
    assert second.version == store.entry("lease").version != first.version
    assert store.write_if("lease", b"3", first.version) is None, "it has changed since"
    assert store.read("lease") == b"2"
    assert not store.remove_if("lease", first.version)
    assert store.read("lease") == b"2"
    assert store.remove_if("lease", second.version)
    assert not store.remove_if("lease", second.version)
    assert store.write_if("lease", b"4", second.version) is None, "it is gone"
    assert store.read("lease") is None


def lets_one_of_several_win(store):
    stores = [ObjectStore(store.uri, timeout=20) for _ in range(4)]
    for turn in range(20):
        start = threading.Barrier(len(stores))

        def write(number, turn=turn, start=start):
            start.wait(PATIENCE_S)
            return stores[number].write_if(f"race/{turn}", str(number).encode(), None)

        with ThreadPoolExecutor(len(stores)) as pool:
            entries = list(pool.map(write, range(len(stores))))
        (winner,) = (number for number, entry in enumerate(entries) if entry is not None)
        assert store.read(f"race/{turn}") == str(winner).encode()


@pytest.mark.slow
def test_a_write_that_expects_another_version_is_refused(conditional):
    refuses_other_versions(conditional)
    lets_one_of_several_win(conditional)
    nowhere = ObjectStore(f"{conditional.uri.partition('://')[0]}://nowhere/x", timeout=20)
    with pytest.raises(ObjectStoreError, match=r"nowhere/x is not there .*; create it"):
        nowhere.write_if("lease", b"1", None)


def test_a_folder_behind_a_uri_refuses_a_write_that_expects_another_version(tmp_path):
    refuses_other_versions(ObjectStore(f"file://{tmp_path}/x"))
    lets_one_of_several_win(ObjectStore(f"file://{tmp_path}/x"))


def test_a_server_that_compares_nothing_is_asked_before_each_write(gs):
    store = ObjectStore(f"{gs.uri}/blind", timeout=20)
    store.write("lease", b"1")
    assert store.write_if("lease", b"2", None) is not None, "this emulator ignores what a request expects"
    store.compares = False
    assert store.write_if("lease", b"3", None) is None
    assert store.write_if("lease", b"3", store.entry("lease").version) is not None
    assert store.read("lease") == b"3"
    assert not store.remove_if("lease", "another")
    assert store.remove_if("lease", store.entry("lease").version)


def test_requests_that_failed_together_are_not_repeated_together():
    """Each wait is drawn from a fifth of a second, which begins twice as late each time and never after 8 s."""
    for failures in range(5):
        drawn = [pause_s(failures) for _ in range(20)]
        least = 0.2 * 2**failures
        assert least <= min(drawn) < max(drawn) <= least + 0.2
    assert pause_s(30) == pause_s(30_000) == 8


@pytest.mark.parametrize("protocol", ["gs", "gcs"])
def test_a_request_to_google_that_gets_no_answer_ends(protocol, monkeypatch):
    """Its client waits for ever, unless it is given a timeout."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # Google's library would look for its own machines for 15 s
    timeout = ObjectStore(f"{protocol}://bucket/x")._fs.requests_timeout
    assert (timeout.sock_connect, timeout.sock_read) == (10, 60)
