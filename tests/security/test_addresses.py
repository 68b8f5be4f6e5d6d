"""What a sweep file names is on this machine or on the hub: no address in it makes anything ask another server."""

import http.server
import itertools
import json

import pytest

from any_source import any_source
from babeltune.cli.filtering import sizes_of
from babeltune.data.sources import read_source
from babeltune.errors import DataError, SpecError, TeacherError
from babeltune.models.hub import model_folder
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import read_cluster
from served import answering


@pytest.fixture
def server():
    """The address of an HTTP server that has every file, and the paths that it was asked for."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"eng\tfra\nhello\tbonjour\n")

        def do_HEAD(self):
            self.do_GET()

    with answering(Handler) as host:
        yield host, paths


ADDRESSES = [
    "http://{host}/text.tsv",
    "HTTP://{host}/text.tsv",
    "zip://text.tsv::http://{host}/text.zip",
    "simplecache::http://{host}/text.tsv",
    "file://{secret}",
    "hf://datasets/a/b/c.tsv",
]
LEAVING = ["{secret}", "../secret.tsv", "a/../../secret.tsv", "file:{secret}", "~/secret.tsv"]


def filled(template, host, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.csv").write_text("eng,fra\nwater,eau\n", encoding="utf-8")
    secret = tmp_path / "secret.tsv"
    secret.write_text("eng\tfra\nmy secret\tmon secret\n", encoding="utf-8")
    return template.format(host=host, secret=secret)


HUB = "{name: s, format: hub, dataset: ., columns: {eng: eng, fra: fra}}"
FILES = ("data.root", "data.train.0.path", "data.dev.0.source.path", "data.dev.1.path")
MODELS = ("teacher.model", "student.model", "student.start", "student.embeddings_from")
PLACES = {
    **{key: [] for key in (*FILES, *MODELS, "parameters.student.model", "parameters.student.start")},
    "data.train.0.paths.fra": ["data.train=[{name: s, format: moses, paths: {eng: a, fra: b}}]"],
    "data.train.0.dataset": [f"data.train=[{HUB}]"],
}
INSIDES = {
    "data.train.0.subset": [f"data.train=[{HUB}]"],
    "data.train.0.split": [f"data.train=[{HUB}]"],
    "data.train.0.revision": [f"data.train=[{HUB}]"],
    "teacher.revision": [],
    "student.revision": ["student.model=a/b"],
}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("key", [*PLACES, *INSIDES])
def test_an_address_is_refused_wherever_a_sweep_file_names_something(tiny_file, tmp_path, server, key, address):
    host, paths = server
    address = filled(address, host, tmp_path)
    value = f"{key}.choice=[{json.dumps(address)}]" if key.startswith("parameters") else f"{key}={json.dumps(address)}"
    before = (PLACES | INSIDES)[key]
    with pytest.raises(SpecError) as caught:
        read_sweep(tiny_file, assignments=[*before, value], reachable=True)
    (line,) = [line for line in str(caught.value).splitlines() if f"{key}" in line.partition("must be")[0]]
    assert "must be a path or name without `://`, `::`" in line
    assert not paths


@pytest.mark.parametrize("path", LEAVING)
@pytest.mark.parametrize("key", list(INSIDES))
def test_a_subset_a_split_and_a_revision_are_no_paths_elsewhere(tiny_file, tmp_path, key, path):
    path = filled(path, "", tmp_path)
    with pytest.raises(SpecError, match="that stays inside"):
        read_sweep(tiny_file, assignments=[*INSIDES[key], f"{key}={json.dumps(path)}"], check=False)


@pytest.mark.parametrize(
    ("field", "address"),
    [
        *itertools.product(["subset", "split", "revision"], [*ADDRESSES, *LEAVING]),
        *(("dataset", address) for address in [*ADDRESSES, *LEAVING] if address != "{secret}"),  # a whole path is given
    ],
)
def test_a_data_set_is_never_loaded_from_an_address(tmp_path, server, monkeypatch, field, address):
    host, paths = server
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {"dataset": ".", field: filled(address, host, tmp_path)}
    source = any_source(name="s", format="hub", columns={"eng": "eng", "fra": "fra"}, **values)
    with pytest.raises(DataError):
        read_source(source, tmp_path / "root", others={})
    assert not paths


@pytest.mark.parametrize("address", [ADDRESSES[0], ADDRESSES[2], "../secret.tsv", "{secret}", "out/secret.tsv"])
@pytest.mark.parametrize("card", ["README.md", "*"])
def test_a_folders_own_card_and_links_lead_nowhere_else(tmp_path, server, address, card):
    host, paths = server
    address = filled(address, host, tmp_path)
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    where = {"subset": address} if card == "*" else {}
    if card == "README.md":
        text = f"---\nconfigs:\n- config_name: default\n  data_files: {json.dumps(address)}\n---\n"
        (tmp_path / "root" / card).write_text(text, encoding="utf-8")
    source = any_source(name="s", format="hub", dataset=".", columns={"eng": "eng", "fra": "fra"}, **where)
    with pytest.raises(DataError, match=r"leads out|must be|out of"):
        read_source(source, tmp_path / "root", others={})
    assert not paths


def test_a_data_sets_own_files_and_splits_are_still_read(tmp_path):
    filled("", "", tmp_path)
    for more in ({}, {"subset": "./a*.csv"}, {"split": "train[:50%]"}, {"split": "train"}):
        source = any_source(name="s", format="hub", dataset=".", columns={"eng": "eng", "fra": "fra"}, **more)
        if more != {"split": "train[:50%]"}:
            assert read_source(source, tmp_path / "root", others={}).columns == {"eng": ["water"], "fra": ["eau"]}


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_model_is_never_loaded_from_an_address(tmp_path, server, address):
    host, paths = server
    with pytest.raises(TeacherError, match="no such folder"):
        model_folder(filled(address, host, tmp_path), None, setting="teacher.model")
    assert not paths


TEXT_FIELDS = ["description", "data.root", "data.train.0.path", "teacher.model", "student.prompt", "name", "seed"]


@pytest.mark.parametrize("escape", [r"a\0b", r"a\ud800b"])
@pytest.mark.parametrize("key", TEXT_FIELDS)
def test_a_nul_is_refused_in_every_text_of_a_sweep_file(tiny_file, tmp_path, key, escape):
    with pytest.raises(SpecError, match=r"holds the character U\+(0000|D800), which no text has; remove it"):
        read_sweep(tiny_file, assignments=[f'{key}="{escape}"'], reachable=True)


@pytest.mark.parametrize("key", ["storage", "cache", "token_file", "mlflow", "address", "name"])
def test_a_nul_and_an_endless_path_are_refused_in_a_cluster_file(tmp_path, key):
    path = tmp_path / "c.yaml"
    path.write_text(f'{key}: "a\\0b"\n', encoding="utf-8")
    with pytest.raises(SpecError, match=rf"c\.yaml:1: {key}: .* U\+0000"):
        read_cluster(path)
    path.write_text(f"{key}: {'a' * 5000}\n", encoding="utf-8")
    if key != "address":
        with pytest.raises(SpecError, match=rf"c\.yaml:1: {key}: "):
            read_cluster(path)


@pytest.mark.parametrize("key", ["data.root", "data.train.0.path", "data.dev.1.path", "teacher.model", "student.model"])
@pytest.mark.parametrize("text", ["a" * 300, "a/" * 2500])
def test_a_path_that_no_system_allows_is_one_line(tiny_file, key, text):
    with pytest.raises(SpecError, match=f"{key}: .* no longer than the system allows"):
        read_sweep(tiny_file, assignments=[f"{key}={text}"], reachable=True)


DIGITS = "9" * 5000


@pytest.mark.parametrize("key", ["data.train.{n}", "data.train.{n}.cap", "data.train.²", "objectives.{n}.metric"])
def test_an_index_of_thousands_of_digits_is_one_line(tiny_file, key):
    with pytest.raises(SpecError, match="is not an item of the list") as caught:
        read_sweep(tiny_file, assignments=[f"{key.format(n=DIGITS)}=1"])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["²", f"10,{DIGITS}", "", "-1"])
def test_sizes_that_are_no_numbers_are_one_line(text):
    with pytest.raises(SpecError, match="sizes are whole numbers above 0"):
        sizes_of(text)


@pytest.mark.parametrize("port", ["0", "65536", DIGITS, f"{DIGITS}/path"])
def test_a_port_that_there_is_not_is_one_line_and_shown_in_short(tmp_path, port):
    path = tmp_path / "c.yaml"
    path.write_text(f"address: http://head:{port}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=f"address: .* has port {port[:20]}, and ports are 1 to 65535"):
        read_cluster(path)
