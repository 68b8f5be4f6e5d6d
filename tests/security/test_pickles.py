"""Nothing that is loaded runs code: a pickle is planted in the place of every file that babeltune reads."""

import ast
import contextlib
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import babeltune
import babeltune_methods
from babeltune.apps.mining.resumable_search import ResumableSearch
from babeltune.apps.mining.vectors import EncodingModel, embed
from babeltune.data.prepared import read_prepared, write_prepared
from babeltune.data.sources import read_source
from babeltune.data.store import Array, Contents, build, key_of
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.teacher import load_teacher
from babeltune.errors import BabeltuneError, CheckpointError, DataError, StoreError, TeacherError
from babeltune.files import sha256_of
from babeltune.models.build import build_student
from babeltune.models.hub import open_model
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import HubSource, ParquetSource, Teacher, Transformer
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.log import Ledger
from babeltune.training.checkpoint import checkpoint_folder, last_good, load_checkpoint, read_reports, save_checkpoint

SOURCES = [Path(package.__path__[0]) for package in (babeltune, babeltune_methods)]
BANNED_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "code", "runpy"}
BANNED_CALLS = {
    *("eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.hub.load", "yaml.load"),
    *("yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "tarfile.open", "shutil.unpack_archive"),
    *("mlflow.pyfunc.load_model", "tune.Tuner.restore", "pd.read_pickle", "faiss.read_index"),
}
IMPORTED_BY_NAME = {
    *("sweep/ray_internals.py", "sweep/workers/worker.py", "sweep/workers/process_state.py", "apps/mining/index.py"),
    *("promotion/fresh_scorer.py", "testing.py", "__init__.py"),
}
"""Where a module is imported by its name; none of these names comes from a file or a user."""


class Burglar:
    """Runs code where it is unpickled: makes the file."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return (Path.touch, (Path(self.mark),))


@pytest.fixture
def mark(tmp_path):
    """A file that must not come to be."""
    path = tmp_path / "the-burglar-was-here"
    yield path
    assert not path.exists(), "a planted pickle was loaded"


@pytest.fixture
def pickled(mark):
    data = pickle.dumps({"weights": Burglar(mark)})
    pickle.loads(data)
    assert mark.exists(), "the planted pickle works"
    mark.unlink()
    return data


def dotted(node: ast.expr) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "?")


def test_the_sources_never_unpickle_evaluate_or_trust_code():
    findings = []
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            place = path.relative_to(folder).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                where = f"{place}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = (
                        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                    )
                    findings += [f"{where} imports {name}" for name in names if name.split(".")[0] in BANNED_MODULES]
                if not isinstance(node, ast.Call):
                    continue
                name = dotted(node.func)
                keywords = {keyword.arg: keyword.value for keyword in node.keywords}
                values = {key: value.value for key, value in keywords.items() if isinstance(value, ast.Constant)}
                if name in BANNED_CALLS or values.get("shell") is True:
                    findings.append(f"{where} calls {name}")
                if values.get("trust_remote_code") or values.get("allow_pickle") or values.get("weights_only") is False:
                    findings.append(f"{where} trusts what it loads")
                if name.endswith(".from_pretrained") and values.get("trust_remote_code") is not False:
                    findings.append(f"{where} does not say trust_remote_code=False")
                if name.endswith("import_module") and place not in IMPORTED_BY_NAME:
                    findings.append(f"{where} imports a module by name")
    assert not findings


# Models


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small saved sentence-transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("model")
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config).save_pretrained(place / "plain")
    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(place / "plain")
    transformer = Transformer(str(place / "plain"))
    model = SentenceTransformer(modules=[transformer, Pooling(8, "mean"), Dense(8, 4)], device="cpu")
    model.save(str(place / "whole"))
    return place


def as_teacher(folder):
    return load_teacher(Teacher(model=str(folder), max_tokens=16))


def as_student(folder):
    student = Transformer(model=str(folder), projection=None, max_tokens=16)
    return build_student(student, Vocabulary(8, 0), teacher_dim=4, seed=0)


def as_scored(folder):
    return open_model(str(folder)).encode(["a"])


USES = [as_teacher, as_student, as_scored]


@pytest.fixture
def planted(encoder, tmp_path):
    def copy(kind="whole"):
        return Path(shutil.copytree(encoder / kind, tmp_path / kind))

    return copy


@pytest.mark.parametrize("use", USES)
def test_the_planted_model_loads_as_long_as_nothing_is_planted(planted, mark, use):
    assert use(planted()) is not None
    assert not mark.exists()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("part", ["", "2_Dense"])
def test_pickled_weights_are_refused_in_words(planted, pickled, mark, use, part):
    folder = planted()
    (folder / part / "model.safetensors").unlink()
    (folder / part / "pytorch_model.bin").write_bytes(pickled)
    with pytest.raises(BabeltuneError):
        use(folder)


@pytest.mark.parametrize("use", USES)
def test_pickled_weights_beside_safe_ones_and_under_their_name_are_not_read(planted, pickled, mark, use):
    beside = planted()
    (beside / "pytorch_model.bin").write_bytes(pickled)
    (beside / "2_Dense" / "pytorch_model.bin").write_bytes(pickled)
    use(beside)
    (beside / "model.safetensors").write_bytes(pickled)
    with pytest.raises(BabeltuneError):
        use(beside)


CODE = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    load = staticmethod(lambda *a, **k: None)\n"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["evil.Evil", "joblib.numpy_pickle", "os.system"])
def test_a_model_that_brings_or_names_code_is_refused(planted, mark, use, kind):
    folder = planted()
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Evil", "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BabeltuneError):
        use(folder)


@pytest.mark.parametrize("use", USES)
def test_hub_code_is_not_asked_for(planted, mark, use):
    folder = planted()
    (folder / "modeling_evil.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    for name, auto in (
        ("config.json", "AutoModel"),
        ("config.json", "AutoConfig"),
        ("tokenizer_config.json", "AutoTokenizer"),
    ):
        values = json.loads((folder / name).read_text())
        values.setdefault("auto_map", {})[auto] = "modeling_evil.Evil"
        (folder / name).write_text(json.dumps(values))
    use(folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "model_type": "evil"}))
    with pytest.raises(BabeltuneError):
        use(folder)


@pytest.mark.parametrize("use", USES[:2])
def test_a_models_files_stay_in_its_folder(planted, use):
    folder = planted()
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "2_Dense").rename(folder.parent / "2_Dense")
    modules[2]["path"] = "../2_Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(TeacherError, match="not inside of the model's folder"):
        use(folder)


# Stores and checkpoints


def test_arrays_of_objects_are_not_read(tmp_path, tiny, pickled, mark):
    _, prepared = tiny
    record = tmp_path / "prepared.json"
    write_prepared(replace(prepared, folder=str(tmp_path)), record)
    for read in ("pairs", "pair_groups", "pair_weights", "teacher_rows", "text_languages"):
        for name in ("pairs", "groups", "weights", "teacher_rows", "languages"):
            np.save(tmp_path / f"{name}.npy", np.array([Burglar(mark)], dtype=object), allow_pickle=True)
        with pytest.raises(ValueError, match=r"[Pp]ython objects|allow_pickle"):
            getattr(read_prepared(record), read)()
        (tmp_path / "pairs.npy").write_bytes(pickled)
        with pytest.raises(ValueError, match="pickle"):
            read_prepared(record).pairs()


def sealed(folder, change):
    """Alters a store's record as one does who knows how it is sealed."""
    record = json.loads((folder / "store.json").read_text())
    record.pop("seal")
    change(record)
    (folder / "store.json").write_text(json.dumps({**record, "seal": key_of(record)}))


@pytest.fixture
def store(tmp_path):
    def write(folder):
        np.zeros((4, 2), np.float64).tofile(folder / "rows.bin")
        return Contents(arrays={"rows": Array(dtype="float64", width=2, shards=(("rows.bin", 4),))})

    return build(tmp_path / "stores", "test", {}, write)


def test_a_stores_bytes_are_never_taken_for_objects(store):
    assert len(open_matrix(store)) == 4
    sealed(store, lambda record: record["arrays"]["rows"].update(dtype="O"))
    for opened in (open_matrix, open_ragged):
        sealed(
            store,
            lambda record: record["arrays"].update(values=record["arrays"]["rows"], offsets=record["arrays"]["rows"]),
        )
        with pytest.raises(StoreError, match="holds objects"):
            opened(store)


def test_a_stores_files_stay_in_its_folder(store):
    outside = store.parent / "outside.bin"
    outside.write_bytes((store / "rows.bin").read_bytes())
    sealed(store, lambda record: record["arrays"]["rows"].update(shards=[["../outside.bin", 4]]))
    with pytest.raises(StoreError, match="is no file of it"):
        open_matrix(store)
    sealed(store, lambda record: record["files"].update({"../outside.bin": {"bytes": 64, "sha256": "0"}}))
    with pytest.raises(StoreError, match="no file of its folder"):
        open_matrix(store)


def test_a_checkpoint_of_pickles_is_not_loaded_even_with_their_digests(tmp_path, pickled, mark):
    place = checkpoint_folder(tmp_path, 1)
    save_checkpoint(place, {"student": {"w": torch.ones(1)}}, {})
    for name in ("student.safetensors", "state.json", "evil.pt", "evil.bin"):
        whole = {path.name: path.read_bytes() for path in place.iterdir()}
        (place / name).write_bytes(pickled)
        files = {path.name: sha256_of(path) for path in place.iterdir() if path.name != "manifest.json"}
        (place / "manifest.json").write_text(json.dumps({"files": files}))
        if name.startswith("evil"):
            assert load_checkpoint(place)[0].keys() == {"student"}
        else:
            with pytest.raises(CheckpointError, match="holds what no checkpoint has"):
                load_checkpoint(place)
        for file_name, data in whole.items():
            (place / file_name).write_bytes(data)
    (place / "manifest.json").write_bytes(pickled)
    with pytest.raises(CheckpointError):
        load_checkpoint(place)
    (tmp_path / "reports.jsonl").write_bytes(pickled[:1] + b"\n")
    assert last_good(tmp_path) == []


def test_a_sweeps_files_are_never_unpickled(copied, pickled, mark):
    _, folder, _ = copied
    for path in sorted(path for path in folder.path.rglob("*.json*") if path.is_file()):
        whole = path.read_bytes()
        path.write_bytes(pickled)
        for read in (leaderboard, lambda each: read_reports(each.trial(0)), SweepFolder.accepted, SweepFolder.state):
            with contextlib.suppress(ValueError, BabeltuneError):
                read(folder)
        if path.name == "results.jsonl":
            assert Ledger(path).lines == []
        path.write_bytes(whole)
    for name in ("searcher-state.pkl", "experiment_state-x.json", "tuner.pkl", "trainable.pkl", "checkpoint.pkl"):
        place = folder.path / "tune" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(pickled)
    leaderboard(SweepFolder(folder.path))


def test_what_mining_kept_is_not_unpickled(tmp_path, monkeypatch, pickled, mark):
    monkeypatch.setattr(EncodingModel, "encode", lambda self, texts: np.eye(8, dtype=np.float32)[: len(texts)])
    side = embed(["a", "b"], EncodingModel("toy", "d"), tmp_path / "vectors", tmp_path)
    search = ResumableSearch(tmp_path, (side, side), 1)
    for planted in (pickled, None):
        if planted is None:
            objects = dict.fromkeys(("done", "forward", "backward"), np.array([Burglar(mark)], dtype=object))
            np.savez(search._file, **objects)
        else:
            search._file.write_bytes(planted)
        assert len(ResumableSearch(tmp_path, (side, side), 1).waiting) == len(search.grid), (
            "what cannot be read is as nothing"
        )


# Data sets


@pytest.mark.parametrize("name", ["data.pkl", "data.pickle", "data.pt", "data.arrow", "data.parquet", "data.npy"])
def test_a_data_set_of_pickles_is_refused(tmp_path, pickled, mark, name):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(pickled)
    columns = {"eng": "a", "fra": "b"}
    sources = [
        HubSource(name="s", format="hub", dataset="set", columns=columns),
        HubSource(name="s", format="hub", dataset="pandas", subset=f"{tmp_path}/set/{name}", columns=columns),
        HubSource(name="s", format="hub", dataset="pickle", subset=f"{tmp_path}/set/{name}", columns=columns),
        ParquetSource(name="s", format="parquet", path=f"set/{name}", columns=columns),
    ]
    for source in sources:
        with pytest.raises(DataError):
            read_source(source, tmp_path, others={})


def test_a_data_sets_script_is_not_run(tmp_path, mark, offline):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    source = HubSource(name="s", format="hub", dataset="set", columns={"eng": "a", "fra": "b"})
    with pytest.raises(DataError):
        read_source(source, tmp_path, others={})


def test_a_saved_data_set_of_pickles_is_refused(tmp_path, pickled, mark):
    import datasets

    datasets.Dataset.from_dict({"a": ["x"], "b": ["y"]}).save_to_disk(tmp_path / "set")
    source = HubSource(name="s", format="hub", dataset="set", columns={"eng": "a", "fra": "b"})
    assert len(read_source(source, tmp_path, others={})) == 1
    for path in sorted((tmp_path / "set").iterdir()):
        whole = path.read_bytes()
        path.write_bytes(pickled)
        with pytest.raises(DataError):
            read_source(source, tmp_path, others={})
        path.write_bytes(whole)


def test_safetensors_of_junk_are_an_error_not_a_crash(tmp_path):
    from safetensors.torch import load_file

    for junk in (b"", b"\xff" * 64, (2**60).to_bytes(8, "little") + b"{}", b"\x02\0\0\0\0\0\0\0{]"):
        path = tmp_path / "x.safetensors"
        path.write_bytes(junk)
        with pytest.raises(Exception, match=r"[Hh]eader"):
            load_file(path)
    save_file({"w": torch.ones(1)}, path)
    assert load_file(path)["w"] == 1
