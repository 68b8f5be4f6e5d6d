"""What a trial reads of a corpus whose pairs are too many for an array in each worker."""

import numpy as np
import pytest
import torch

from babeltune.data import arrays
from babeltune.method import needs_of
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.training import batches, epochs
from babeltune.training.build import make_reader, make_schedule

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

CPU = torch.device("cpu")


@pytest.fixture
def large(tiny_file, tiny_storage, monkeypatch):
    """The trial, record and reader of a corpus that counts as large, read in tiny parts."""
    sweep = read_sweep(tiny_file, assignments=["parameters={}"])
    prepared = prepare(sweep, tiny_storage)
    for module in (batches, epochs):
        monkeypatch.setattr(module, "COMPUTED_ABOVE", 0)
    monkeypatch.setattr(arrays, "PART", 16)
    trial = make_trial(sweep, 0, {})
    return trial, prepared, make_reader(trial, prepared, CPU)


def test_a_trial_of_a_large_corpus_sees_every_pair_once_an_epoch(large):
    trial, prepared, reader = large
    schedule = make_schedule(trial, prepared, reader, needs_of(trial.method, trial.config))
    assert all(isinstance(stream, epochs.ComputedStream) for stream in schedule.streams)
    for group, stream in enumerate(schedule.streams):
        own = np.flatnonzero(prepared.pair_groups() == group)
        assert np.array_equal(np.sort(stream.take(0, len(own))), own)
    rows = schedule.rows(0)
    batch = reader.batch(rows, len(rows))
    assert np.array_equal(batch.source_ids.numpy(), prepared.pairs()[rows, 0])


def test_a_queue_of_a_large_corpus_begins_with_different_anchors(large):
    trial, prepared, reader = large
    anchors = set(prepared.distinct_anchors().tolist())
    for count in (10, 10 * len(anchors)):
        vectors, ids = reader.anchors(count, trial.seed)
        assert len(set(ids.tolist())) == len(ids) == len(vectors) == min(count, len(anchors))
        assert set(ids.tolist()) <= anchors
        assert torch.equal(ids, reader.anchors(count, trial.seed)[1])
        assert prepared.anchors_up_to(count) == len(ids)
    assert not torch.equal(reader.anchors(10, 1)[1], reader.anchors(10, 2)[1])


def test_lengths_of_targets_are_those_of_their_tokens(large):
    _, prepared, reader = large
    whole = reader.tokens.lengths()
    assert np.array_equal(reader.target_lengths(), whole[prepared.pairs()[:, 1]])


def test_the_pairs_that_have_a_word_are_found_part_by_part(large):
    _, prepared, reader = large
    pairs = np.array([0, 0, 3, 15, 16, 16, 40])
    reader.words = np.zeros((len(pairs), 5), np.int32)
    reader.words[:, 0] = pairs
    reader.__post_init__()
    assert reader.usable().tolist() == [0, 3, 15, 16, 40]
    assert np.array_equal(reader.first_word, np.searchsorted(pairs, np.arange(len(prepared.pairs()) + 1)))
