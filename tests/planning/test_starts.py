"""`student.start` and `student.embeddings_from` in a sweep file: pinned to their content, and refused where they do not
fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from babeltune.bundled.templates import __file__ as bundled
from babeltune.data.starts import DIGITS, PIN, copy_start, digest_of_start
from babeltune.data.tokens import load_tokenizer, train_tokenizer
from babeltune.errors import SpecError
from babeltune.models.build import build_student
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.calibration import Machine
from babeltune.planning.plan import make_plan
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial, preparations, sample
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.promotion.export import export
from babeltune.schema.records import Static, Transformer

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
SHAPES = {
    "transformer": Transformer(layers=1, width=32, heads=2, feed_forward=64, max_tokens=32, projection=384),
    "narrow": Transformer(layers=1, width=16, heads=2, feed_forward=64, max_tokens=32, projection=384),
    "static": Static(width=32, max_tokens=32, projection=384),
    "bare": Static(width=24, max_tokens=32),
}
TEXTS = (Path(bundled).parent / "natural_train.tsv").read_text("utf-8").splitlines()[:300]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Exported models of several shapes, by name, whose tokenizer is the same."""
    place = tmp_path_factory.mktemp("models")
    folder = train_tokenizer(TEXTS, 700, folder=place / "tokenizer")
    for name, student in SHAPES.items():
        tokenizer = load_tokenizer(student, folder)
        made = build_student(student, Vocabulary(len(tokenizer), 0), teacher_dim=None, seed=3)
        export(made, tokenizer, student, place / name)
    (place / "no_model").mkdir()
    return place


def student(place, name, more="", kind="transformer", **fields):
    values = {"kind": kind, "start": str(place / name), "max_tokens": 32, **fields}
    return "student=" + json.dumps(values)


def test_a_start_brings_the_shape_that_the_file_does_not_write(tiny_file, models):
    sweep = read_sweep(tiny_file, assignments=[student(models, "narrow")])
    found = sweep.student
    assert (found.layers, found.width, found.heads, found.feed_forward) == (1, 16, 2, 64)
    assert (found.projection, found.normalize, found.pooling) == (384, True, "mean")
    assert found.start == f"{models / 'narrow'}{PIN}{digest_of_start(models / 'narrow')}"
    static = read_sweep(tiny_file, assignments=[student(models, "bare", kind="static", projection="teacher")]).student
    assert (static.kind, static.width, static.projection) == ("static", 24, "teacher"), "a layer after it is a new one"


def test_a_student_goes_on_with_the_prompt_of_its_start(tiny_file, models):
    file = models / "static" / "config_sentence_transformers.json"
    before = file.read_text("utf-8")
    file.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": "query"}), "utf-8")
    try:
        assert read_sweep(tiny_file, assignments=[student(models, "static", kind="static")]).student.prompt == "query: "
        with pytest.raises(SpecError, match=r"'text: ': the start .* has 'query: '"):
            read_sweep(tiny_file, assignments=[student(models, "static", kind="static", prompt="text: ")])
    finally:
        file.write_text(before, "utf-8")


def test_a_starts_content_is_part_of_the_sweeps_id_and_of_the_written_file(tiny_file, models, tmp_path):
    asked = [student(models, "transformer")]
    sweep = read_sweep(tiny_file, assignments=asked)
    written = tmp_path / "written.yaml"
    written.write_text(spec_yaml(sweep), encoding="utf-8")
    assert sweep_id(read_sweep(written)) == sweep_id(sweep)
    weights = models / "transformer" / "1_Pooling" / ".." / "model.safetensors"
    before = load_file(weights)
    try:
        save_file({name: value + 1 for name, value in before.items()}, weights, metadata={"format": "pt"})
        assert sweep_id(read_sweep(tiny_file, assignments=asked)) != sweep_id(sweep)
        with pytest.raises(SpecError, match=r"student.start: .* has the digest \w+, and the file asks for \w+"):
            read_sweep(written)
    finally:
        save_file(before, weights, metadata={"format": "pt"})
    assert sweep_id(read_sweep(tiny_file, assignments=asked)) == sweep_id(sweep)


def test_starts_can_be_searched(tiny_file, models):
    other = models / "other"
    if not other.exists():
        tokenizer = load_tokenizer(SHAPES["transformer"], models / "tokenizer")
        made = build_student(SHAPES["transformer"], Vocabulary(len(tokenizer), 0), teacher_dim=None, seed=4)
        export(made, tokenizer, SHAPES["transformer"], other)
    choice = json.dumps([None, str(models / "transformer"), str(other)])
    settings = ["student={max_tokens: 32}", f"parameters.student.start={{choice: {choice}}}"]
    sweep = read_sweep(tiny_file, assignments=settings)
    names = sweep.parameters["student.start"].choice
    assert names[0] is None
    assert all(len(name.partition(PIN)[2]) == DIGITS for name in names[1:])
    assert sweep.student.width == 32, "from scratch, the student has the starts' shape"
    assert {s.start for s in preparations(sweep)} == set(names)
    trials = [make_trial(sweep, number, sample(sweep, number)) for number in range(20)]
    assert {trial.student.start for trial in trials} == set(names)
    with pytest.raises(SpecError, match=r"student.width: 32: the start .*narrow' has 16; set that, or leave it out"):
        read_sweep(tiny_file, assignments=[settings[0], settings[1].replace(str(other), str(models / "narrow"))])


def fetch_none(name):
    from babeltune.errors import UnknownNameError

    raise UnknownNameError(f"the store has no {name}; there: none")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{start: MODELS/nothing}", r"student.start: '.*nothing' is no folder here, .*name a folder"),
        ("{start: MODELS/no_model}",
         r"student.start: '.*no_model' is no sentence-transformers model: it has no modules"),
        ("{start: 'models:/first@champoin'}", r"student.start: 'models:/first@champoin' is no folder here"),
        ("{start: MODELS/static}", r"is a static model, and student.kind is transformer; .*student.embeddings_from"),
        ("{start: MODELS/transformer, kind: static}", r"is a Transformer, and student.kind is static"),
        ("{start: MODELS/transformer, width: 64}",
         r"student.width: 64: the start .* has 32; set that, or leave it out"),
        ("{start: MODELS/transformer, layers: 3}", r"student.layers: 3: the start .* has 1"),
        ("{start: MODELS/transformer, pooling: cls}", r"student.pooling: 'cls': the start .* has 'mean'"),
        ("{start: MODELS/transformer, projection: 16}", r"student.projection: 16: the start .* has 384"),
        ("{start: MODELS/transformer, normalize: false}", r"student.normalize: false: the start .* has true"),
        ("{start: MODELS/transformer, max_tokens: 500}", r"student.max_tokens: 500: the start .* has 64 positions"),
        ("{start: MODELS/transformer, vocabulary: 500}", r"student.vocabulary: 500: the start's tokenizer has 700 tok"),
        ("{start: MODELS/transformer, vocabulary: teacher}",
         r"student.vocabulary: 'teacher': the start's tokenizer has"),
        ("{start: MODELS/transformer, model: a/b}",
         r"student.start: .* and student.model do not go together; keep one"),
        ("{start: MODELS/transformer, trim: true}", r"student.trim: needs student.model; .* a start keeps its own"),
        ("{start: MODELS/transformer@sha256:00}", r"has the digest \w{16}, and the file asks for 00"),
        ("{embeddings_from: MODELS/static, kind: static}",
         r"embeddings_from: .*a static student begins .*student.start"),
        ("{embeddings_from: MODELS/transformer}", r"embeddings_from: .*is no static model"),
        ("{embeddings_from: MODELS/static, width: 64}", r"token vectors 32 wide, .*width 64 is neither .*layer, 384"),
        ("{embeddings_from: MODELS/bare, width: 32, heads: 2}",
         r"token vectors 24 wide, and student.width 32 is neither"),
        ("{embeddings_from: MODELS/static, width: 32, heads: 2, vocabulary: 999}",
         r"vocabulary: 999: the start's token"),
        ("{embeddings_from: MODELS/static, start: MODELS/static}",
         r"student.embeddings_from: .* and student.start do not go together"),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_one_line(tiny_file, models, settings, message):
    settings = settings.replace("MODELS", str(models))
    with pytest.raises(SpecError, match=message) as caught:
        read_sweep(tiny_file, assignments=[f"student={settings}"])
    lines = [line for line in str(caught.value).splitlines() if "go together" not in line or "go together" in message]
    assert len(lines) == 1, lines


def test_an_unknown_alias_is_one_line(tiny_file):
    words = r"student.start: the store has no models:/first@champoin; there: none"
    with pytest.raises(SpecError, match=words) as caught:
        read_sweep(tiny_file, assignments=["student={start: 'models:/first@champoin'}"], fetch=fetch_none)
    assert len(str(caught.value).splitlines()) == 1


def test_a_searched_shape_beside_a_start_is_one_line(tiny_file, models):
    for widths, words in (
        ("[16, 32]", r"student.width: 32: the start .*narrow' has 16; set that, or leave it out"),
        ("[16]", r"student.width: the start .* brings its own width; leave one of the two out"),
    ):
        searched = f"parameters.student.width={{choice: {widths}}}"
        with pytest.raises(SpecError, match=words) as caught:
            read_sweep(tiny_file, assignments=[student(models, "narrow"), searched])
        assert len(str(caught.value).splitlines()) == 1


def test_a_pinned_start_is_taken_as_it_is_where_its_storage_is_not_asked(tiny_file):
    name = f"models:/first@champion{PIN}0123456789abcdef"
    sweep = read_sweep(tiny_file, assignments=[f"student={{start: '{name}', projection: teacher}}"])
    assert sweep.student.start == name
    assert replace(sweep.student, start=None).start is None


@pytest.mark.slow
def test_plan_times_a_trial_whose_start_only_the_storage_has(tiny_file, models, tmp_path):
    def fetch(name):
        return str(copy_start(tmp_path / "storage", models / "transformer"))

    asked = ["student={start: 'models:/first@champion', projection: teacher}"]
    sweep = read_sweep(tiny_file, assignments=asked, fetch=fetch)
    machine = Machine(groups=1, workers=1, threads=1, memory_bytes=8 * 2**30, storage=tmp_path / "storage")
    report = make_plan(sweep, samples=0, machine=machine)
    assert report.not_measured == ""
    assert report.estimate is not None
    report = make_plan(sweep, samples=0, machine=replace(machine, storage=tmp_path))
    assert "is not in" in report.not_measured, "another storage has it not"
