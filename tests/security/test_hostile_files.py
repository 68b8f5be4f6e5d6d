"""A sweep file, a cluster file, an archive or a name that means harm runs nothing and writes nowhere else."""

import gzip
import io
import json
import re
import tarfile
import zipfile

import pytest

from babeltune.data.sources import read_source
from babeltune.errors import DataError, MethodError, SpecError, UnknownNameError
from babeltune.method import load_method
from babeltune.planning.sweep_file import read_data, read_sweep
from babeltune.remote.wheel import build_wheel
from babeltune.schema.cluster import read_cluster
from babeltune.schema.records import TsvSource
from babeltune.sweep.state.folder import find_run, find_sweep


@pytest.fixture
def mark(tmp_path):
    """A file that must not come to be."""
    path = tmp_path / "the-burglar-was-here"
    yield path
    assert not path.exists()


@pytest.fixture
def read(tiny_file, tmp_path):
    """Reads the tiny sweep with these words added or in the place of others."""

    def call(more="", **changes):
        text = tiny_file.read_text(encoding="utf-8")
        for old, new in changes.items():
            text, count = re.subn(rf"^{old}: .*$", f"{old}: {new}", text, count=1, flags=re.MULTILINE)
            assert count
        path = tmp_path / "hostile.yaml"
        path.write_text(text + more, encoding="utf-8")
        return read_sweep(path)

    return call


TAGS = [
    "!!python/object/apply:os.system ['touch {mark}']",
    "!!python/object/new:os.system ['touch {mark}']",
    "!!python/object:pathlib.Path {{}}",
    "!!python/name:os.system",
    "!!python/module:os",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {mark}']",
    "!!binary aGVsbG8=",
    "!!set {{a, b}}",
    "!include /etc/passwd",
    "!ENV ${{HOME}}",
]


@pytest.mark.parametrize("value", TAGS)
def test_a_tag_is_refused_in_sweep_cluster_and_command_line(read, tiny_file, tmp_path, mark, value):
    value = value.format(mark=mark)
    with pytest.raises(SpecError, match="tag"):
        read(f"description: {value}\n")
    with pytest.raises(SpecError, match="tag"):
        read_sweep(tiny_file, assignments=[f"description={value}"])
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"name: {value}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="tag"):
        read_cluster(cluster)
    with pytest.raises(SpecError, match="tag"):
        read_data(cluster)


LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "anchor"),
        ("<<: {name: x}\n", "unknown key '<<'"),
        ("description: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply|must be"),
        ("description: " + "{a: " * 90 + "1" + "}" * 90 + "\n", "description"),
        ("- " * 3000 + "x\n", "not valid YAML|nested too deeply"),
        ("seed: " + "9" * 5000 + "\n", "given twice|too many digits"),
        ("description: " + "x" * 1_100_000 + "\n", "bytes; a sweep or cluster file has at most"),
        ("description: \0\n", "not valid YAML"),
        ("? [a, b]\n: c\n", "a key must be a word"),
        ("--- \nname: other\n", "not valid YAML|single document"),
        ("__class__: x\n", "unknown key '__class__'"),
    ],
)
def test_what_would_fill_memory_or_the_stack_is_refused(read, text, reason):
    with pytest.raises(SpecError, match=reason) as caught:
        read(text)
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("number", ["9" * 41, "1e999", "-.inf", ".nan", "0x" + "f" * 50, "9" * 40])
def test_a_number_that_no_computer_counts_to_is_refused(tiny_file, number):
    keys = ("seed", "training.pairs", "student.vocabulary", "student.width", "teacher.max_tokens", "budget.workers")
    for key in keys:
        with pytest.raises(SpecError):
            read_sweep(tiny_file, assignments=[f"{key}={number}"])


HARM = ["os.system", "os:system", "builtins.eval", "../../evil", "__import__('os')", "", "a b"]
OURS = "babeltune.sweep.workers.run_trial:run"


@pytest.mark.parametrize("name", [*HARM, OURS])
def test_a_method_is_an_installed_one_or_none(read, name):
    with pytest.raises(MethodError, match="no method"):
        load_method(name)
    with pytest.raises(SpecError, match="method"):
        read(method=f"'{name}'".replace("('os')", "os"))


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/x", "a/b", "..", ".", ".hidden", "a\\b", "a\nb", "$(touch x)", "`touch x`", "x" * 81, "-rf"],
)
def test_a_name_that_would_be_a_path_is_refused_everywhere(read, tiny_file, tmp_path, name):
    quoted = json.dumps(name)
    with pytest.raises(SpecError, match="must be letters"):
        read(name=quoted)
    for key in ("data.train.0.name", "data.dev.0.name", "data.dev.0.source.name"):
        with pytest.raises(SpecError, match="must be letters"):
            read_sweep(tiny_file, assignments=[f"{key}={quoted}"])
    for key in ("sampler.warm_start", "promotion.name"):
        with pytest.raises(SpecError):
            read_sweep(tiny_file, assignments=[f"{key}={quoted}"])
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"name: {quoted}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="must be letters"):
        read_cluster(cluster)


@pytest.mark.parametrize("name", ["../outside", "../../outside/sweeps/x", "/etc", ".", ".."])
def test_a_command_finds_sweeps_of_its_storage_only(searched, tmp_path, name):
    _, folder = searched
    storage = folder.path.parents[1]
    with pytest.raises(UnknownNameError):
        find_sweep(storage, name)
    for trial in ("../t0000", "../../x", "t0000/../../y", "0x0", "-1"):
        with pytest.raises(UnknownNameError):
            find_run(storage, f"{folder.id}/{trial}")


PATHS = ["../../etc/passwd", "a/../../b.tsv", "..", "./../x.tsv"]


@pytest.mark.parametrize("path", PATHS)
def test_a_sources_path_stays_in_the_data_root(tiny_file, path):
    for key in ("data.train.0.path", "data.dev.0.source.path", "data.dev.1.path"):
        with pytest.raises(SpecError, match=r"leaves data\.root; change data\.root, or give a whole path"):
            read_sweep(tiny_file, assignments=[f"{key}={path}"])
    columns = "columns: {eng: a, fra: b}"
    for where in ("format: moses, paths: {eng: a.txt, fra: PATH}", f"format: hub, dataset: PATH, {columns}"):
        source = f"data.train=[{{name: s, {where.replace('PATH', path)}}}]"
        with pytest.raises(SpecError, match=r"leaves data\.root"):
            read_sweep(tiny_file, assignments=[source])


NAMED = [
    "path: PATH, columns: {eng: eng, fra: fra}",
    "format: moses, paths: {eng: PATH, fra: inside.tsv}",
    "format: hub, dataset: PATH, columns: {eng: eng, fra: fra}",
]


@pytest.mark.parametrize("fields", NAMED)
def test_a_link_leads_out_of_the_data_root_only_by_its_whole_path(tiny_file, tmp_path, fields):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    for place in (root / "inside.tsv", elsewhere / "text.tsv"):
        place.write_text("eng\tfra\na\tb\n", encoding="utf-8")
    (root / "link.tsv").symlink_to(elsewhere / "text.tsv")
    (root / "folder").symlink_to(elsewhere)
    (root / "here.tsv").symlink_to(root / "inside.tsv")

    def problems(path):
        train = f"data.train=[{{name: a, {fields.replace('PATH', path)}}}]"
        with pytest.raises(SpecError) as caught:  # the dev sets are not there
            read_sweep(tiny_file, assignments=[f"data.root={root}", train], reachable=True)
        return str(caught.value)

    for path in ("link.tsv", "folder/text.tsv"):
        assert f"is a link out of data.root, to {elsewhere / 'text.tsv'}; give that whole path" in problems(path)
        for whole in (f"{root}/{path}", str(elsewhere / "text.tsv"), "here.tsv"):
            assert "link out of" not in problems(whole)
    with pytest.raises(DataError, match=r"is a link out of data\.root"):
        read_source(TsvSource(name="a", path="link.tsv", columns={"eng": "eng", "fra": "fra"}), root, others={})


def test_a_variable_is_put_in_as_text_and_once(tiny_file, mark, monkeypatch):
    monkeypatch.setenv("EVIL", f"$(touch {mark}) ${{HOME}} `touch {mark}`")
    sweep = read_sweep(tiny_file, assignments=["teacher.model=${EVIL}"], check=False)
    assert sweep.teacher.model == f"$(touch {mark}) ${{HOME}} `touch {mark}`"
    for words in ("${EVIL!r}", "${EVIL.__class__}", "${EVIL:-${HOME}}", "{0.__class__}", "{{ 7 * 7 }}", "%(name)s"):
        sweep = read_sweep(tiny_file, assignments=[f"description='{words}'"], check=False)
        assert sweep.description == words


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "api_key", "GH_PAT"])
@pytest.mark.parametrize("key", ["teacher.model", "data.root", "data.train.0.path"])
def test_a_secret_of_the_environment_does_not_leave_it(tiny_file, monkeypatch, name, key):
    monkeypatch.setenv(name, "s3cr3t")
    words = f"would put the secret of the environment variable {name} into files"
    with pytest.raises(SpecError, match=words) as caught:
        read_sweep(tiny_file, assignments=[f"{key}=org/${{{name}}}"], reachable=True)
    assert "s3cr3t" not in str(caught.value)
    monkeypatch.setenv("KEYBOARD", "qwerty")
    sweep = read_sweep(tiny_file, assignments=["teacher.model=org/${KEYBOARD}"], check=False)
    assert sweep.teacher.model == "org/qwerty"


@pytest.mark.parametrize(
    "model", ["evil/model", "../evil", "$(touch x)", "file:///etc/passwd", "http://127.0.0.1/x", "-x"]
)
def test_a_model_name_is_a_folder_or_a_hub_id(tiny_file, tmp_path, model, offline, mark):
    with pytest.raises(SpecError):
        read_sweep(tiny_file, assignments=[f"teacher.model='{model}'"], reachable=True)


# Archives


def packed(kind, text):
    """A TSV as a member that would be written elsewhere."""
    data = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("../../outside.tsv", text)
    elif kind == "tar":
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            member = tarfile.TarInfo("../../outside.tsv")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return data.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_read_in_memory_or_refused_and_never_unpacked(tmp_path, kind):
    text = b"eng\tfra\na\tb\n"
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    (root / "text.tsv").write_bytes(packed(kind, text))
    source = TsvSource(name="s", path="text.tsv", columns={"eng": "eng", "fra": "fra"})
    if kind == "zip":
        assert read_source(source, root, others={}).columns == {"eng": ["a"], "fra": ["b"]}
    else:
        with pytest.raises(DataError):
            read_source(source, root, others={})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "text.tsv"]


def test_a_gzip_that_names_another_file_is_only_its_content(tmp_path):
    path = tmp_path / "text.tsv.gz"
    with path.open("wb") as raw, gzip.GzipFile("../../outside.tsv", "wb", fileobj=raw) as file:
        file.write(b"eng\tfra\na\tb\n")
    source = TsvSource(name="s", path="text.tsv.gz", columns={"eng": "eng", "fra": "fra"})
    assert read_source(source, tmp_path, others={}).columns == {"eng": ["a"], "fra": ["b"]}
    assert [path.name for path in tmp_path.rglob("*")] == ["text.tsv.gz"]


def test_the_wheel_has_only_members_inside_of_it(tmp_path):
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        names = archive.namelist()
    assert names
    assert not [name for name in names if name.startswith(("/", "\\")) or ".." in name.split("/") or ":" in name]
