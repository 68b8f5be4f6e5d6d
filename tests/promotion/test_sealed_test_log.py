"""No opening of a sealed test set gets lost: not by another process, a cut line, a full disk, or another machine."""

import json
import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from babeltune.data.eval_sets import read_eval
from babeltune.planning.sweep_file import read_data
from babeltune.promotion.candidate import find_candidate
from babeltune.promotion.sealed_test_log import read_openings, record_opening
from babeltune.promotion.verdict import weigh
from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.view import OPENINGS_FILE, StorageView
from bucket_servers import BUCKET

RECORDER = """
import sys
from pathlib import Path
from babeltune.data.eval_sets import read_eval
from babeltune.promotion.sealed_test_log import record_opening
from babeltune.planning.sweep_file import read_data

storage, file, times = sys.argv[1:]
data, root = read_data(file)
sets = read_eval(data.test, root)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(times)):
    print(record_opening(Path(storage), "m", storage, sets).times, flush=True)
"""


@pytest.fixture
def sealed_sets(tiny_file):
    data, root = read_data(tiny_file)
    return read_eval(data.test, root)


def recorder(storage, tiny_file, times, **more):
    """A process that is ready to record this many openings, and begins when it is sent a line."""
    command = [sys.executable, "-c", RECORDER, str(storage), str(tiny_file), str(times)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def test_openings_that_several_processes_record_at_once_are_all_counted(tmp_path, tiny_file):
    (tmp_path / OPENINGS_FILE).write_bytes(b'{"time": "2026-01-31T12:00:00Z", "user": "ad')
    processes = [recorder(tmp_path, tiny_file, 10) for _ in range(3)]
    for process in processes:
        go(process)
    outputs = [process.communicate()[0].split() for process in processes]
    assert sorted(int(word) for words in outputs for word in words) == list(range(1, 31))
    assert len(read_openings(tmp_path)) == 30
    assert len({line["id"] for line in read_openings(tmp_path)}) == 30


def test_a_process_that_is_killed_while_it_records_costs_no_other_opening(tmp_path, tiny_file, sealed_sets):
    process = recorder(tmp_path, tiny_file, 1_000_000)
    go(process)
    for _ in range(5):
        count = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert record_opening(tmp_path, "m", tmp_path, sealed_sets).times == len(read_openings(tmp_path)) > count


@pytest.mark.parametrize("cut", [1, 20, -1, -2, "é"])
def test_an_opening_behind_a_line_that_was_cut_off_is_counted(tmp_path, sealed_sets, cut):
    path = tmp_path / OPENINGS_FILE
    record_opening(tmp_path, "é", tmp_path, sealed_sets)
    whole = path.read_bytes()
    end = whole.index("é".encode()) + 1 if cut == "é" else cut
    path.write_bytes(whole + whole[:end])
    times = 3 if cut == -1 else 2  # only its end is missing
    assert record_opening(tmp_path, "é", tmp_path, sealed_sets).times == times
    assert len(read_openings(tmp_path)) == times
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b'{"time": "20', b"[]\n", b"{}\n", b"5\n", b"\xff\xfe\n", b'{"digests": 1}']
)
def test_a_file_of_nothing_that_can_be_read_is_begun_anew(tmp_path, sealed_sets, content):
    (tmp_path / OPENINGS_FILE).write_bytes(content)
    assert read_openings(tmp_path) == []
    openings = record_opening(tmp_path, "m", tmp_path, sealed_sets)
    assert (openings.times, openings.models, openings.warning(0.95)) == (1, 1, "")


def test_a_warning_names_each_earlier_time_once(tmp_path, sealed_sets, monkeypatch):
    times = [f"2026-01-3{day}T12:00:00Z" for day in range(3)]
    warnings = []
    for moment in times:
        monkeypatch.setattr("babeltune.promotion.sealed_test_log.time.strftime", lambda *_, moment=moment: moment)
        warnings.append(record_opening(tmp_path, "m", tmp_path, sealed_sets).warning(0.95))
    first, second, third = ([moment for moment in times for _ in range(words.count(moment))] for words in warnings)
    assert (first, second, third) == ([], times[:1], times[:2])
    assert "opened 2 times, for 1 model (before this 2026-01-30T12:00:00Z by " in warnings[1]
    assert "opened 3 times, for 1 model (first 2026-01-30T12:00:00Z by " in warnings[2]


def test_separators_of_lines_in_a_models_name_split_no_record(tmp_path, sealed_sets):
    for times in (1, 2):
        assert record_opening(tmp_path, "a\u2028b\x85c", tmp_path, sealed_sets).times == times


def test_an_opening_for_which_there_is_no_room_leaves_the_file_as_it_was(tmp_path, tiny_file, sealed_sets):
    record_opening(tmp_path, "m", tmp_path, sealed_sets)
    before = (tmp_path / OPENINGS_FILE).read_bytes()

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, resource.RLIM_INFINITY))

    process = recorder(tmp_path, tiny_file, 1, preexec_fn=little_room, stderr=subprocess.PIPE)
    _, words = process.communicate("go\n")
    assert "File too large" in words
    assert (tmp_path / OPENINGS_FILE).read_bytes() == before
    assert record_opening(tmp_path, "m", tmp_path, sealed_sets).times == 2


def test_openings_of_two_machines_are_all_kept_while_others_look(s3, tmp_path, sealed_sets):
    """Of openings of one model in one second, only the ids differ."""
    view = []
    for name in ("one", "two"):
        view.append(StorageView(Cluster(storage=f"s3://{BUCKET}/openings", cache=str(tmp_path / name))))
        view[-1].folder.mkdir(parents=True, exist_ok=True)
    assert view[0].folder != view[1].folder
    (view[0].folder / OPENINGS_FILE).write_bytes(b'{"time": "20')
    done = threading.Event()

    def record(place):
        for _ in range(8):
            with place.openings():
                record_opening(place.folder, "m", tmp_path, sealed_sets)

    def look():
        while not done.is_set():
            for place in view:
                place.update()

    looking, *writing = [threading.Thread(target=look), *(threading.Thread(target=record, args=(p,)) for p in view)]
    for thread in (looking, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    done.set()
    looking.join()
    for place in view:
        with place.openings():
            ids = {line["id"] for line in read_openings(place.folder)}
        assert len(ids) == 16
        assert len(read_openings(place.folder)) == 16, "none twice"
    objects = [json.loads(line) for line in map(view[0].mirror.store.read, view[0].mirror.store.entries("openings"))]
    assert len(objects) == 16


def test_an_opening_reaches_the_bucket_before_a_sealed_test_is_scored(copied, tmp_path):
    _, folder, cluster = copied
    candidate, events = find_candidate(folder.id, cluster.folder), []

    class Scorer:
        def scored(self, models, tasks, prefix, target):
            events.append(prefix)
            if prefix == "test":
                raise KeyboardInterrupt
            return {name: (candidate.report.metrics, {}) for name in models}

    @contextmanager
    def openings():
        yield
        events.append(f"{len(read_openings(cluster.folder))} in the bucket")

    with pytest.raises(KeyboardInterrupt):
        weigh(candidate, tmp_path, Scorer(), None, openings)
    assert events == ["dev", "1 in the bucket", "test"]


def test_an_opening_is_on_the_disk_before_it_is_counted(tmp_path, sealed_sets, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    record_opening(tmp_path, "m", tmp_path, sealed_sets)
    assert (tmp_path / OPENINGS_FILE).stat().st_size in synced


def test_the_lock_of_openings_is_released_where_the_storage_refuses(tmp_path, sealed_sets):
    (tmp_path / OPENINGS_FILE).mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(21)):
            record_opening(tmp_path, "m", tmp_path, sealed_sets)
