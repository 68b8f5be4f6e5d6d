"""What a lane's worker keeps between trials."""

import os

from babeltune.data.prepared import write_prepared
from babeltune.workers.trial import load_prepared


def test_what_was_prepared_stays_in_a_warm_worker_until_it_changes(tiny, tmp_path):
    _, prepared = tiny
    path = tmp_path / "prepared.json"
    write_prepared(prepared, path)
    first = load_prepared(path)
    assert first == prepared
    assert load_prepared(path) is first
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert load_prepared(path) is not first
