"""A student that begins from an exported model: its weights, its tokens, the copy in the storage and on other nodes."""

import json
import shutil

import pytest
import torch

from babeltune.data.prepared import read_prepared, write_prepared
from babeltune.data.starts import keep_start, pinned
from babeltune.data.store import stores_in
from babeltune.errors import TeacherError
from babeltune.method.distributed import ProcessGroup
from babeltune.models.build import WORD_STD, build_student
from babeltune.models.start import embeddings_problem, read_start, take_embeddings
from babeltune.models.static import StaticEncoder
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export_trial
from babeltune.schema.records import Transformer
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.mirror import Mirror
from babeltune.sweep.sync.shards import BucketStores
from babeltune.sweep.sync.view import stores_of
from babeltune.sweep.sync.worker import bring_prepared
from babeltune.train import Printer
from babeltune.training.build import make_method, make_student, token_set
from babeltune.training.dev_evaluation import dev_scores
from babeltune.training.trainer import TrialTrainer
from bucket_servers import BUCKET

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

CPU = torch.device("cpu")
STATIC = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32}"
SHAPES = {"transformer": [], "static": [STATIC], "pooler": ["student.projection=null", "student.pooling=pooler"]}
SHAPES["pooler"] += ["method=translation_ranking", "parameters={}"]


@pytest.fixture(scope="module")
def exported(tiny_file, tiny_storage, tmp_path_factory):
    """Trains a tiny trial of a shape for some steps, and exports it: folder, last metrics, student."""
    place, exports = tmp_path_factory.mktemp("exported"), {}

    def export(shape):
        if shape not in exports:
            short = ["parameters={}", "training.pairs=320", "training.reports=1", *SHAPES[shape]]
            sweep = read_sweep(tiny_file, assignments=short)
            prepared = prepare(sweep, tiny_storage)
            trial = make_trial(sweep, 0, {})
            run = TrialTrainer(trial, prepared, place / f"run-{shape}", Printer([]), ProcessGroup(), CPU)
            (report,) = run.train()
            export_trial(sweep, trial, prepared, run.train_step.encoder, run.train_step.method, place / shape)
            exports[shape] = place / shape, report.metrics, run.train_step.encoder
        return exports[shape]

    return export


def started(tiny_file, storage, folder, shape="transformer", **fields):
    kind = "static" if shape == "static" else "transformer"
    student = json.dumps({"kind": kind, "start": str(folder), **fields})
    more = [one for one in SHAPES[shape] if not one.startswith("student")]
    sweep = read_sweep(tiny_file, assignments=["parameters={}", *more, f"student={student}"])
    return sweep, make_trial(sweep, 0, {}), prepare(sweep, storage)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_student_begins_with_the_weights_the_tokens_and_the_scores_of_its_start(
    tiny_file, tiny_storage, exported, shape
):
    folder, metrics, encoder = exported(shape)
    _, trial, prepared = started(tiny_file, tiny_storage, folder, shape)
    student = make_student(trial, prepared)
    assert isinstance(student, StaticEncoder) == (shape == "static")
    for (name, weight), other in zip(student.named_parameters(), encoder.parameters(), strict=True):
        assert torch.equal(weight, other), name
    method = make_method(trial, prepared, student)
    scores = dev_scores(student, method, trial, prepared, ProcessGroup(), CPU)
    assert scores["dev/everyday/accuracy"] == metrics["dev/everyday/accuracy"]
    assert scores["dev/sts/spearman"] == pytest.approx(metrics["dev/sts/spearman"], abs=1e-6)


def test_a_start_is_copied_into_the_storage_once_whatever_happens_to_the_folder(tiny_file, exported, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(exported("static")[0], folder)
    sweep, trial, prepared = started(tiny_file, tmp_path, folder, "static")
    copy = keep_start(tmp_path, trial.student.start)
    assert str(copy) == token_set(trial, prepared).tokenizer
    assert copy in prepared.folders()
    before = make_student(trial, prepared).word_embeddings
    shutil.rmtree(folder)
    assert keep_start(tmp_path, trial.student.start) == copy
    assert torch.equal(make_student(trial, prepare(sweep, tmp_path)).word_embeddings, before)
    shutil.rmtree(copy)
    with pytest.raises(TeacherError, match=r"is not in .*fetched any more; submit the sweep file again"):
        prepare(sweep, tmp_path)
    shutil.copytree(exported("transformer")[0], folder)
    with pytest.raises(TeacherError, match=r"has changed: its digest is \w{16}, and this sweep began with \w{16}"):
        prepare(sweep, tmp_path)


def test_two_sweeps_from_other_starts_read_their_own_tokens(tiny_file, tiny_storage, exported):
    students = [started(tiny_file, tiny_storage, exported(shape)[0], shape)[1:] for shape in ("static", "transformer")]
    vocabularies = [token_set(trial, prepared).vocabulary for trial, prepared in students]
    assert vocabularies == [500, 1000]


def test_a_node_that_shares_no_folder_gets_the_start_with_the_stores(s3, tiny_file, exported, tmp_path):
    where = [
        StorageLocation(uri=f"s3://{BUCKET}/starts", cache=str(tmp_path / name), timeout=20)
        for name in ("one", "other")
    ]
    one, other = map(Mirror, where)
    _, trial, prepared = started(tiny_file, one.folder, exported("static")[0], "static")
    record = one.folder / "sweeps" / "a" / "prepared.json"
    record.parent.mkdir(parents=True)
    write_prepared(prepared, record)
    for key in stores_of(one, prepared):
        one.push_package(one.path(key))
    one.push(record)
    prepared_there = bring_prepared(other, other.path("sweeps/a/prepared.json"))
    place = token_set(trial, prepared_there).tokenizer
    assert place.startswith(str(other.folder))
    shutil.rmtree(one.folder)
    assert torch.equal(make_student(trial, prepared_there).word_embeddings, exported("static")[2].word_embeddings)
    shutil.rmtree(place)
    with stores_in(BucketStores(other, lambda request: request(), takes_shards=False)):
        assert str(keep_start(other.folder, trial.student.start)) == place, "a driver on another machine fetches it"
    assert read_prepared(other.path("sweeps/a/prepared.json")).tokens == prepared_there.tokens


# --- The token table of a static model ------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "heads"), [(32, 2), (384, 4)])
def test_a_transformers_table_is_the_static_ones_or_what_its_dense_layer_makes_of_it(
    tiny_file, tiny_storage, exported, width, heads
):
    folder, _, static = exported("static")
    student = f"student={{embeddings_from: {folder}, layers: 1, width: {width}, heads: {heads}, projection: teacher}}"
    sweep = read_sweep(tiny_file, assignments=["parameters={}", student])
    trial, prepared = make_trial(sweep, 0, {}), prepare(sweep, tiny_storage)
    assert trial.student.vocabulary == 500
    assert token_set(trial, prepared).vocabulary == 500
    encoder = make_student(trial, prepared)
    table = static.word_embeddings if width == 32 else static.projection(static.word_embeddings)
    scale = encoder.word_embeddings.std() / table.std()
    torch.testing.assert_close(encoder.word_embeddings, table * scale)
    assert encoder.word_embeddings.std().item() == pytest.approx(WORD_STD, rel=0.1)
    run = TrialTrainer(trial, prepared, tiny_storage / f"from-table-{width}", Printer([]), ProcessGroup(), CPU)
    assert len(run.train()) == 2


def test_the_mean_of_mapped_rows_is_the_static_models_vector_of_the_sentence(exported):
    static, tokens = exported("static")[2], torch.tensor([7, 9, 30])
    table = static.projection(static.word_embeddings)
    vector = static.projection(static.word_embeddings[tokens].mean(0))
    torch.testing.assert_close(table[tokens].mean(0), vector, rtol=1e-4, atol=1e-6)


def test_a_table_of_no_fitting_width_is_refused(exported):
    folder = exported("static")[0]
    assert embeddings_problem(32, read_start(folder)) is None
    assert embeddings_problem(384, read_start(folder)) is None
    assert "width 48 is neither that nor of its dense layer, 384" in embeddings_problem(48, read_start(folder))
    fields = {"kind": "transformer", "layers": 1, "width": 48, "heads": 2}
    narrow = build_student(Transformer(**fields), Vocabulary(500, 0), teacher_dim=None, seed=0)
    with pytest.raises(TeacherError, match=r"token vectors 32 wide, and the student is 48 wide; set student.width"):
        take_embeddings(narrow, folder)
    assert pinned("x", folder).startswith("x@sha256:")
