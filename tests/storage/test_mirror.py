"""Two machines' mirrors of one bucket on a real server: what reaches the other one, and what is passed over."""

import itertools
import json
import shutil

import pytest

from babeltune.errors import ObjectStoreError
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import is_local
from babeltune.storage.packages import PACKAGE_MANIFEST


@pytest.fixture
def mirrors(bucket_server, request, tmp_path):
    """Of one machine and of another."""
    uri = f"{bucket_server.uri}/{request.node.name.partition('[')[0][:60]}"
    return [Mirror(StorageLocation(uri=uri, cache=str(tmp_path / name), timeout=20)) for name in ("one", "other")]


def planted(mirror, key):
    return f"{mirror.store.uri.partition('://')[2].partition('/')[2]}/{key}"


def package(mirror, files, key="stores/tokens-1"):
    place = mirror.path(key)
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


FILES = {"rows.bin": bytes(range(256)) * 100, "store.json": b"{}", "deep/er/file": b"x"}


def content(place):
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_package_arrives_whole_and_is_not_sent_twice(mirrors, bucket_server):
    one, other = mirrors
    place = package(one, FILES)
    assert not other.pull_package("stores/tokens-1")
    one.push_package(place)
    files = json.loads(bucket_server.get(planted(one, f"stores/tokens-1/{PACKAGE_MANIFEST}")))["files"]
    assert {name: facts["bytes"] for name, facts in files.items()} == {name: len(data) for name, data in FILES.items()}
    assert other.pull_package("stores/tokens-1")
    assert content(other.path("stores/tokens-1")) == FILES
    before = one.store.entries()
    one.push_package(place)
    other.push_package(other.path("stores/tokens-1"))
    assert not one.push_package(place, listed={}), "a listing may be behind the write"
    assert {key: entry.modified for key, entry in one.store.entries().items()} == {
        key: entry.modified for key, entry in before.items()
    }


def test_a_package_that_is_sent_tells_its_bytes_and_takes_back_failed_tries(mirrors, monkeypatch):
    one, _ = mirrors
    sizes, steps, put = sum(map(len, FILES.values())), [], one.store._fs.put_file

    def fails_once(path, place, callback):
        if path.endswith("rows.bin") and not any("half" in each for each in steps):
            callback.relative_update(12_800)
            steps.append(("half", sizes))
            raise OSError("the connection is gone")
        put(path, place, callback=callback)

    monkeypatch.setattr(one.store._fs, "put_file", fails_once)
    assert one.push_package(package(one, FILES), tell=lambda *far: steps.append(far))
    assert steps[0] == (0, sizes)
    assert steps[-1] == (sizes, sizes)
    assert all(0 <= done <= of == sizes for done, of in steps if done != "half")
    assert not one.push_package(one.path("stores/tokens-1"), tell=lambda *far: pytest.fail("nothing is sent"))


def test_a_package_without_its_manifest_is_not_there(mirrors):
    one, other = mirrors
    one.push_package(package(one, FILES))
    one.store.remove(f"stores/tokens-1/{PACKAGE_MANIFEST}")
    assert not other.pull_package("stores/tokens-1")
    one.push_package(one.path("stores/tokens-1"))
    assert other.pull_package("stores/tokens-1")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [FILES["rows.bin"][:-1], b"x" * len(FILES["rows.bin"]), None])
def test_a_damaged_package_is_passed_over_and_renewed(mirrors, bucket_server, damage):
    one, other = mirrors
    one.push_package(package(one, FILES))
    key = planted(one, "stores/tokens-1/rows.bin")
    if damage is None:
        bucket_server.remove(key)
    else:
        bucket_server.put(key, damage)
    assert not other.pull_package("stores/tokens-1")
    assert not other.path("stores/tokens-1").exists()
    one.push_package(one.path("stores/tokens-1"))
    assert other.pull_package("stores/tokens-1")
    assert content(other.path("stores/tokens-1")) == FILES


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "missing", "altered"])
def test_a_package_that_was_damaged_here_is_downloaded_again(mirrors, damage):
    one, other = mirrors
    store = package(one, FILES)
    one.push_package(store)
    key = one.key(store)
    for mirror in (one, other):
        assert mirror.pull_package(key)
        path = next(each for each in sorted(mirror.path(key).rglob("*")) if each.is_file())
        whole, times = path.read_bytes(), path.stat()
        path.touch()
        assert mirror.pull_package(key)
        assert path.stat().st_ino == times.st_ino, "what was only touched is left"
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] if damage == "truncated" else whole[:-1] + b"?")
        assert mirror.pull_package(key)
        assert path.read_bytes() == whole


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Mirrors of a bucket that is a folder, which take one object after the other."""
    monkeypatch.setattr("babeltune.storage.packages.AT_ONCE", 1)
    uri = f"file://{tmp_path}/bucket"
    return [Mirror(StorageLocation(uri=uri, cache=str(tmp_path / name))) for name in ("one", "other", "third")]


def between(mirror, patch, *acts):
    """Has others act before requests of this mirror: each act has the request's number. Returns what counts them."""
    tried, count = mirror.store._tried, itertools.count()

    def request(action, send):
        now = next(count)
        for number, act in acts:
            if number == now:
                act()
        return tried(action, send)

    patch.setattr(mirror.store, "_tried", request)
    return lambda: next(count)


def cut_off(mirror, patch, writes):
    """The mirror's machine goes down after this many changes of the bucket."""
    tried, changes = mirror.store._tried, iter(range(writes))

    def request(action, send):
        if action.startswith(("written", "changed")) and next(changes, None) is None:
            raise ConnectionAbortedError
        return tried(action, send)

    patch.setattr(mirror.store, "_tried", request)


KEY = "sweeps/a/checkpoints/000001"
CHECKPOINT = {"manifest.json": b"with", "optimizer.safetensors": b"much", "student.safetensors": b"weights"}
STRIPPED = {"manifest.json": b"without", "student.safetensors": b"weights"}


@pytest.mark.parametrize("writes", [1, 2])
def test_a_package_that_loses_a_file_while_it_is_read_stays_whole(folders, writes):
    """The removal begins before any of the reader's requests, and goes on before any later one or after the last."""
    owner, reader, third = folders

    def strip():
        owner.drop_from_package(KEY, "optimizer.safetensors", {"manifest.json": STRIPPED["manifest.json"]})

    def begin():
        with pytest.MonkeyPatch.context() as patch:
            cut_off(owner, patch, writes)
            with pytest.raises(ConnectionAbortedError):
                strip()

    def read(*acts):
        owner.push_package(package(owner, CHECKPOINT, KEY))
        with pytest.MonkeyPatch.context() as patch:
            requests = between(reader, patch, *acts)
            reader.pull_package(KEY)
            count = requests()
        strip()
        assert third.pull_package(KEY), f"it is lost: {acts}"
        assert content(third.path(KEY)) == STRIPPED
        for mirror in (reader, third):
            shutil.rmtree(mirror.path(KEY), ignore_errors=True)
        return count

    most = read()
    assert most > 3
    for first in range(2 * most):
        for then in range(first, 2 * most + 1):
            read((first, begin), (then, strip))


def test_a_disk_that_changes_what_it_is_given_spoils_the_package_for_nobody_else(folders, monkeypatch):
    one, bad, third = folders
    one.push_package(package(one, FILES))
    download = bad.store.download

    def onto_a_bad_disk(key, path):
        download(key, path)
        path.write_bytes(path.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(bad.store, "download", onto_a_bad_disk)
    words = r"stores/tokens-1 is sound, but .* changes .*; check that disk"
    with pytest.raises(ObjectStoreError, match=words) as refused:
        bad.pull_package("stores/tokens-1")
    assert is_local(refused.value.__cause__), "the node is left out, and fails no trial"
    assert third.pull_package("stores/tokens-1")


def test_a_manifest_cannot_name_files_outside_of_its_package(mirrors, bucket_server):
    one, other = mirrors
    one.push_package(package(one, FILES))
    manifest = {"files": {"../../../evil": {"bytes": 1, "sha256": "0" * 64}}}
    bucket_server.put(planted(one, f"stores/tokens-1/{PACKAGE_MANIFEST}"), json.dumps(manifest).encode())
    with pytest.raises(ObjectStoreError, match="leaves its folder"):
        other.pull_package("stores/tokens-1")


@pytest.mark.slow
def test_records_are_sent_when_they_change_and_own_changes_are_never_overwritten(mirrors):
    one, other = mirrors
    file, copy = one.path("sweeps/a/state.json"), other.path("sweeps/a/state.json")
    file.parent.mkdir(parents=True)
    file.write_text("1")
    assert one.waits(file)
    assert one.push(file)
    assert not one.push(file)
    assert not one.waits(file)
    other.fetch("sweeps/a/state.json")
    assert copy.read_text() == "1"
    file.write_text("2")
    assert one.push(file)
    other.fetch("sweeps/a/state.json")
    assert copy.read_text() == "2"
    copy.write_text("own")
    file.write_text("3")
    one.push(file)
    other.fetch("sweeps/a/state.json")
    assert copy.read_text() == "own"
    assert other.waits(copy)


@pytest.mark.slow
def test_what_the_bucket_has_no_more_goes_but_not_what_it_never_had(mirrors):
    one, other = mirrors
    for name in ("a", "b"):
        one.path(f"sweeps/x/{name}").parent.mkdir(parents=True, exist_ok=True)
        one.path(f"sweeps/x/{name}").write_text(name)
        one.push(one.path(f"sweeps/x/{name}"))
    other.pull(other.store.entries("sweeps/x"))
    other.path("sweeps/x/own").write_text("own")
    one.store.remove("sweeps/x/a")
    other.forget_missing("sweeps/x", other.store.entries("sweeps/x"))
    assert sorted(path.name for path in other.path("sweeps/x").iterdir()) == ["b", "own"]
