"""Preparation: every store built once, found again, and made of the right text."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from babeltune.data.corpus import build_corpus
from babeltune.data.prepare import Requirements, asked_of_teacher
from babeltune.data.prepared import read_prepared, write_prepared
from babeltune.data.store import facts_of
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.teacher import load_teacher
from babeltune.errors import StoreError
from babeltune.files import plain
from babeltune.method import load_method, make_config
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import data_root


def stores(storage):
    """Every store's folder and when its record was written."""
    return {p.parent.name: p.stat().st_mtime_ns for p in (storage / "stores").glob("*/store.json")}


def only_soft(sweep, **config):
    return replace(sweep, config=config, parameters={})


def test_a_second_preparation_finds_every_store_and_gives_the_same_record(tiny, tiny_storage):
    sweep, prepared = tiny
    before = stores(tiny_storage)
    calls = []
    again = prepare(sweep, tiny_storage, progress=lambda *a: calls.append(a))
    assert again == prepared
    assert stores(tiny_storage) == before
    assert {name.partition("-")[0] for name in before} >= {"overlap", "prepared", "teacher", "tokenizer", "tokens"}
    assert not any(stage == "encoding with the teacher" for stage, _, _ in calls), "nothing is encoded again"


def test_the_record_is_read_back_as_it_was_written(tiny, tmp_path):
    _, prepared = tiny
    write_prepared(prepared, tmp_path / "prepared.json")
    assert read_prepared(tmp_path / "prepared.json") == prepared


def test_a_record_of_another_version_is_refused_with_the_way_on(tiny, tmp_path):
    for key in ("languages", "tokens"):
        values = plain(tiny[1])
        del values[key]
        (tmp_path / "prepared.json").write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(StoreError, match=rf"another version of babeltune .*{key}.*--accept-changes"):
            read_prepared(tmp_path / "prepared.json")


def test_the_teacher_encodes_every_distinct_sentence_once(tiny):
    sweep, prepared = tiny
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed)
    anchors = {corpus.texts[i] for i in corpus.pairs[:, 0]}
    dev = {corpus.texts[i] for t in corpus.tasks for i in (*t.left, *t.right)}
    facts = facts_of(Path(prepared.teacher))
    assert facts["forwarded"] == len(anchors | dev)
    rows = np.asarray(prepared.teacher_rows())
    assert len(open_matrix(Path(prepared.teacher))) == len(set(rows[rows >= 0].tolist())) == facts["forwarded"]
    targets = np.setdiff1d(corpus.pairs[:, 1], [i for t in corpus.tasks for i in (*t.left, *t.right)])
    assert (rows[targets] == -1).all(), "targets are not asked for labels that read the source side"


def test_a_row_holds_the_teachers_vector_of_its_text(tiny):
    sweep, prepared = tiny
    texts = prepared.all_texts()
    ids = np.asarray(prepared.pairs())[::60, 0].astype(np.int64)
    stored = open_matrix(Path(prepared.teacher)).rows(prepared.teacher_rows()[ids])
    fresh = load_teacher(sweep.teacher).encode([texts[i] for i in ids])
    np.testing.assert_allclose(stored, fresh, atol=2e-3)


def test_equal_sentences_of_two_languages_are_asked_once(tmp_path, tiny):
    sweep, _ = tiny
    lines = ["eng\tfra", "OK\tD'accord", "All right\tOK", "Hello there.\tBonjour."]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = replace(sweep.data.train[0], path="a.tsv", columns={"eng": "eng", "fra": "fra"}, id=None)
    data = replace(sweep.data, root=str(tmp_path), train=(source,), dev=(), test=())
    corpus = build_corpus(data, tmp_path, 0)
    both = Requirements(frozenset({"source", "target"}), ())
    anchors, rows = asked_of_teacher(corpus, both, copy_anchor=False)
    same = [i for i, text in enumerate(corpus.texts) if text == "OK"]
    assert len(anchors) == len(set(anchors))
    assert [corpus.languages[i] for i in same] == ["eng", "fra"]
    assert len({int(rows[i]) for i in same}) == 1
    assert [anchors[r] for r in rows] == corpus.texts
    frozen = Requirements(frozenset(), (), frozen=True)
    assert asked_of_teacher(corpus, frozen, copy_anchor=True)[0] == anchors, "an encoder is asked for every text"


@pytest.mark.trap(30)
def test_another_teacher_prompt_or_other_data_is_another_digest(tiny, tiny_storage):
    sweep, prepared = tiny
    prompted = prepare(replace(sweep, teacher=replace(sweep.teacher, prompt="query: ")), tiny_storage)
    assert prompted.digest != prepared.digest
    assert prompted.teacher != prepared.teacher
    assert prompted.tokens == prepared.tokens, "the tokens do not depend on the teacher"
    source = replace(sweep.data.train[0], columns={"eng": "eng", "fra": "fra"})
    fewer = prepare(replace(sweep, data=replace(sweep.data, train=(source,))), tiny_storage)
    assert fewer.digest != prepared.digest
    assert fewer.digest != prompted.digest
    assert fewer.groups == ("eng-fra",)


def test_the_tokenizer_is_trained_on_training_text_only(tmp_path, tiny):
    sweep, _ = tiny
    rows = [(f"The house number {i} is red.", f"La maison {i} est rouge.") for i in range(40)]
    write(tmp_path / "train.tsv", rows)
    write(tmp_path / "dev.tsv", [("ζζζζ ξξξξ", "ψψψψ ωωωω")] * 1 + [("Zebras graze.", "Les zèbres broutent.")])
    columns = {"eng": "eng", "fra": "fra"}
    train = replace(sweep.data.train[0], path="train.tsv", columns=columns, id=None)
    task = sweep.data.dev[0]
    dev = replace(task, source=replace(task.source, path="dev.tsv", columns=columns, id=None), limit=None)
    data = replace(sweep.data, root=str(tmp_path), train=(train,), dev=(dev,), test=())
    prepared = prepare(replace(sweep, data=data), tmp_path / "storage")
    (tokens,) = prepared.tokens.values()
    vocabulary = json.loads((Path(tokens.tokenizer) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert not set("ζξψωZzè") & set("".join(vocabulary).replace("[UNK]", ""))
    assert "house" in " ".join(vocabulary)
    assert len(open_ragged(Path(tokens.train))) == prepared.texts


def write(path, rows):
    path.write_text("".join(f"{a}\t{b}\n" for a, b in [("eng", "fra"), *rows]), encoding="utf-8")


def test_average_labels_with_copied_anchors_read_the_anchors_vectors(tiny, tiny_storage):
    import torch

    from babeltune.planning.space import make_trial
    from babeltune.training.build import make_reader

    sweep, plain = tiny
    sweep = only_soft(sweep, labels="average")
    sweep = replace(sweep, teacher=replace(sweep.teacher, target_side="copy_anchor"))
    prepared = prepare(sweep, tiny_storage)
    assert prepared.copy_anchor
    assert prepared.teacher == plain.teacher, "no further sentence is encoded"
    batch = make_reader(make_trial(sweep, 0, {}), prepared, torch.device("cpu")).batch(np.arange(8), 8)
    assert torch.equal(batch.teacher_target, batch.teacher_source)
    assert batch.teacher_source.shape == (8, prepared.teacher_dim)


@pytest.mark.trap(4)
def test_hard_negatives_are_mined_once_for_translation_ranking(tiny, tiny_storage):
    import torch

    from babeltune.planning.space import make_trial
    from babeltune.training.build import make_reader

    sweep, _ = tiny
    sweep = replace(sweep, method="translation_ranking", config={"hard_negatives": 2}, parameters={})
    method = load_method(sweep.method)
    needs = method.needs(make_config(method, sweep.config))
    prepared = prepare(sweep, tiny_storage)
    assert list(prepared.negatives) == [needs.negatives_key]
    mined, pairs = np.load(prepared.negatives[needs.negatives_key]), np.asarray(prepared.pairs())
    groups = np.asarray(prepared.pair_groups())
    assert mined.shape == (len(pairs), 2)
    assert mined.dtype == np.int32
    assert (mined >= 0).mean() > 0.9
    for group in np.unique(groups):
        targets = set(pairs[groups == group, 1].tolist())
        assert set(mined[groups == group].ravel().tolist()) <= targets | {-1}
    assert not (mined == pairs[:, 1:]).any(), "a pair's own target is no negative"
    reader = make_reader(make_trial(sweep, 0, {}), prepared, torch.device("cpu"))
    chosen = mined[:8].copy()
    chosen[3, 1] = -1  # a pair with fewer negatives
    reader.negatives = chosen
    batch = reader.batch(np.arange(8), 8)
    assert batch.negatives_mask.tolist() == (chosen >= 0).tolist()
    sentences = batch.negatives.ids.split(batch.negatives.lengths.tolist())
    in_order = chosen.ravel().tolist()  # a pair's negatives stand together
    assert len(sentences) == len(in_order) == 16
    for sentence, text in zip(sentences, in_order, strict=True):
        assert text < 0 or torch.equal(sentence, reader.sentences(*reader.tokens.take(np.array([text]))).ids)


def test_a_progress_listener_hears_of_every_stage(tiny, tmp_path):
    sweep, _ = tiny
    source = replace(sweep.data.train[0], cap=40)
    small = replace(sweep, data=replace(sweep.data, train=(source,)))
    noticed = []
    prepare(small, tmp_path, progress=lambda stage, done, total: noticed.append((stage, done, total)))
    stages = list(dict.fromkeys(stage for stage, _, _ in noticed))
    first = ["reading the corpus", "cleaning the corpus", "making the tokenizer"]
    assert stages == [*first, "tokenizing", "encoding with the teacher"]
    assert all(0 <= done <= total for _, done, total in noticed)
    assert {stage: done == total for stage, done, total in noticed} == dict.fromkeys(stages, True)
