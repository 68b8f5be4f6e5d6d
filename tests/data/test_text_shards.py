import pytest

from babeltune.data.shards import run_here
from babeltune.data.text_shards import TextShards
from babeltune.errors import StoreError
from shared_corpus import cleaned, data_in, digest_of, run_with_files, tiny_shards


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_here, run_with_files])
def test_a_corpus_that_is_cleaned_in_shards_has_the_same_bytes(tmp_path, run):
    data = data_in(tmp_path)
    calls = []

    def counting_run(function, arguments, *, gpu=False):
        calls.append([each[1].__name__ if callable(each[1]) else "read" for each in arguments])
        return run(function, arguments)

    whole = cleaned(data, tmp_path)
    assert whole.counts["copies"]["no_near_overlap"] < whole.counts["copies"]["no_overlap"]
    with tiny_shards():
        parts = cleaned(data, tmp_path, TextShards(counting_run, tmp_path / "stores"))
    assert digest_of(parts) == digest_of(whole)
    functions = {"read", "sentence_keys", "text_hashes", "strangers", "near_in_shard"}
    assert {name for names in calls for name in names} == functions
    assert whole.counts["copies"]["swapped"] == 1
    assert max(map(len, calls)) == 3, "no more shards lie on the disk at once"
    assert not list((tmp_path / "stores").iterdir())


def test_a_small_corpus_is_cleaned_in_the_process_of_the_driver(tmp_path):
    def never(function, arguments, *, gpu=False):
        raise AssertionError("a task was started")

    data = data_in(tmp_path)
    assert digest_of(cleaned(data, tmp_path, TextShards(never, tmp_path))) == digest_of(cleaned(data, tmp_path))


def test_a_shard_that_is_lost_is_an_error_and_leaves_nothing(tmp_path):
    def loses_one(function, arguments, *, gpu=False):
        return run_here(function, arguments[1:])

    with tiny_shards(), pytest.raises(StoreError, match="a task was lost: submit again"):
        cleaned(data_in(tmp_path), tmp_path, TextShards(loses_one, tmp_path / "stores"))
    assert not list((tmp_path / "stores").iterdir())
