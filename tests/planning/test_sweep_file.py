"""Sweep files: what is read, what is refused and in which words, and what a sweep's id depends on."""

import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import huggingface_hub
import pytest
import yaml

from babeltune.data.corpus import build_corpus
from babeltune.data.eval_sets import read_eval
from babeltune.data.sources import read_source
from babeltune.data.teacher import teacher_folder
from babeltune.errors import PromotionError, SpecError
from babeltune.files import plain
from babeltune.method import GROUP, Needs, available, load_method
from babeltune.planning.checks import method_problems
from babeltune.planning.goals import dev_metrics
from babeltune.planning.languages import source_pairs, taught_languages
from babeltune.planning.recorded import sweep_from, sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import check_reachable, data_root, find_file, read_data, read_sweep
from babeltune.schema.paths import repository
from babeltune.schema.records import Teacher
from small_models import static_model
from toy_methods import Distance, Toy, install


@dataclass(frozen=True)
class Config:
    temperature: float = 0.1
    labels: Literal["near", "both", "hard"] = "near"
    neighbours: int = 0

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.labels == "hard" and self.neighbours:
            raise ValueError("neighbours are not used with hard labels")


class Contrast(Toy):
    name = "contrast"
    Config = Config

    @classmethod
    def needs(cls, config):
        sides = {"near": {"source"}, "both": {"source", "target"}, "hard": set()}[config.labels]
        return Needs(teacher=frozenset(sides), hard_negatives=config.neighbours)


INSTALLED = entry_points(group=GROUP)  # once: it reads a file of each package


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    install(monkeypatch, Contrast, Distance, beside=INSTALLED)


FILE = """\
version: 1
name: small
method: contrast
parameters:
  temperature: {log_float: [0.01, 0.2]}
  training.learning_rate: {log_float: [1e-4, 3e-3]}
objectives:
  - metric: dev/news/accuracy
data:
  root: .
  train:
    - name: talks
      path: talks.tsv
      columns: {eng: english, fra: french, kor: korean}
      cap: 100
    - name: laws
      path: laws.tsv
      columns: {eng: english, jpn: japanese}
  dev:
    - name: news
      source: {name: rows, path: news.tsv, columns: {eng: eng, fra: fra, kor: kor}}
    - {name: graded, task: sts, path: sts.tsv, language: eng}
student: {layers: 2, width: 64, heads: 4, projection: teacher}
training: {pairs: 1000, reports: 4}
scheduler: {kind: asha, grace: 1}
budget: {trials: 3}
"""


def written(folder: Path, text: str = FILE, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def with_files(folder: Path, text: str = FILE) -> str:
    """The text, with the data files that it names in the folder."""
    for name in ("talks", "laws", "news", "sts"):
        (folder / f"{name}.tsv").touch()
    return text.replace("root: .", f"root: {folder}")


def changed(old: str, new: str) -> str:
    assert FILE.count(old) == 1, old
    return FILE.replace(old, new)


TEST = "{{name: {0}, source: {{name: {0}, path: {0}.tsv, columns: {{fra: fra, eng: eng}}}}}}"


def refusal(path: Path, **options) -> str:
    with pytest.raises(SpecError) as caught:
        read_sweep(path, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_becomes_a_typed_sweep(tmp_path):
    sweep = read_sweep(written(tmp_path))
    assert sweep.parameters["temperature"].log_float == (0.01, 0.2)
    assert sweep.parameters["training.learning_rate"].log_float == (1e-4, 3e-3)
    assert sweep.data.train[0].columns == {"eng": "english", "fra": "french", "kor": "korean"}
    assert sweep.training.learning_rate == 5e-4


REFUSALS = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text(encoding="utf-8"))
ROWS = [pytest.param(t, row, id=f"{t['name']} {place}") for t in REFUSALS for place, row in enumerate(t["rows"])]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_what_a_sweep_file_cannot_mean_is_refused_with_its_key_and_a_next_step(table, row, tmp_path, tiny_file):
    (change, *words), text = row, FILE
    changes = [change] if isinstance(change, str) else change
    if table.get("text"):
        text, changes = changed(*change), []
    files = {"small.yaml": written(tmp_path, text), "tiny.yaml": tiny_file}
    path = files.get(table["file"], f"search_spaces/{table['file']}")
    settings = {"assignments": [*table.get("always", []), *changes], "reachable": table.get("reachable", False)}
    message = refusal(path, **settings)
    for each in words:
        assert re.search(each if table.get("pattern") else re.escape(each), message), message
    assert "\n" not in message or table.get("many_lines"), message


def test_a_lexicon_that_is_not_there_is_refused(tmp_path):
    words = "{align: lexicon, lexicon: [{name: l, path: terms.tsv, columns: {eng: a, fra: b}}]}"
    path = written(tmp_path, with_files(tmp_path))
    assert "data.words.lexicon.0.path" in refusal(path, assignments=[f"data.words={words}"], reachable=True)
    (tmp_path / "terms.tsv").touch()
    assert read_sweep(path, assignments=[f"data.words={words}"], reachable=True).data.words.align == "lexicon"


def test_a_condition_may_restrict_a_setting_to_its_method_through_another_one(tmp_path):
    new = (
        "  method: {choice: [contrast, distance]}\n"
        "  labels: {choice: [near, hard], when: {method: contrast}}\n"
        "  temperature: {log_float: [0.01, 0.2], when: {labels: near}}"
    )
    sweep = read_sweep(written(tmp_path, changed("  temperature: {log_float: [0.01, 0.2]}", new)))
    assert sweep.parameters["temperature"].when == {"labels": "near"}
    assert sweep.parameters["labels"].when == {"method": "contrast"}


def test_a_setting_of_two_methods_is_judged_by_the_one_that_gets_it(tmp_path):
    variant = "variant: {choice: [co], when: {method: laser3_co}}"
    parameters = f"parameters={{method: {{choice: [laser3_co, ml_ctl]}}, {variant}}}"
    settings = ["method=laser3_co", "student.projection=teacher", parameters]
    assert "variant" in read_sweep(written(tmp_path), assignments=settings).parameters
    both = settings[-1].replace("when: {method: laser3_co}", "when: {method: [laser3_co, ml_ctl]}")
    assert "'co' is not possible; allowed: 'info_snt'" in refusal(written(tmp_path), assignments=[*settings[:2], both])


def test_all_mistakes_are_listed_at_once(tmp_path):
    text = changed("reports: 4", "report: 4").replace("cap: 100", "cap: many").replace("trials: 3", "trails: 3")
    message = refusal(written(tmp_path, text))
    assert [line.partition(": ")[0] for line in message.splitlines()] == [
        f"{tmp_path}/small.yaml:{line}" for line in (15, 24, 26)
    ]


def test_the_teacher_rule_has_the_two_ways_out_that_it_names(tmp_path):
    path = written(tmp_path, changed("budget: {trials: 3}", "config: {labels: both}"))
    assert "english" not in refusal(path)
    read_sweep(path, assignments=["teacher.target_side=copy_anchor"])
    read_sweep(path, assignments=["teacher.languages=[eng, fra, kor, jpn]"])


def test_a_method_that_compares_vectors_asks_for_equal_widths(tmp_path):
    path = written(tmp_path, changed("  temperature: {log_float: [0.01, 0.2]}", "  method: {choice: [distance]}"))
    read_sweep(path)
    message = refusal(path, assignments=["student.projection=null"])
    assert "student.projection: nothing: method 'distance' compares the student's vectors (64 wide)" in message
    assert "(384); write `student.projection: teacher`" in message
    read_sweep(path, assignments=["student.projection=384"])
    local = tmp_path / "teacher"
    local.mkdir()
    (local / "config.json").write_text('{"hidden_size": 64}')
    read_sweep(path, assignments=["student.projection=null", f"teacher.model={local}"])


# --- Syntax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!python/object/apply:os.system ['touch HIT']\n", "f.yaml:1: the tag"),
        ("a: !!python/name:os.system ''\n", "f.yaml:1: the tag"),
        ("name: x\na: !include /etc/passwd\n", "f.yaml:2: the tag"),
        ("a: &x [1]\nb: *x\n", "f.yaml:1: not valid YAML here: the anchor or alias 'x' is not used"),
        ("name: x\nb: 1\nname: y\n", "f.yaml:3: the key 'name' is given twice; first at"),
        ("a: {b: 1,\n b: 2}\n", "f.yaml:2: the key 'b' is given twice"),
        ("a: [1,\nb: 2\n", "f.yaml:"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not valid YAML here"),
        ("a: 1\n--- \nb: 2\n", "not valid YAML"),
        ("- a\n", 'f.yaml:1: the file must be a mapping of keys to values, not ["a"]'),
        ("", "f.yaml:1: the file must be a mapping"),
        ("? [a, b]\n: 1\n", "f.yaml:1: a key must be a word"),
        ("<<: {name: x}\n", "unknown key '<<'"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "9" * 5000, "too many digits"),
        ("a: \x00\n", "not valid YAML"),
    ],
)
def test_a_hostile_or_broken_file_is_refused_and_runs_nothing(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(written(tmp_path, text, "f.yaml"))
    assert not (tmp_path / "HIT").exists()


def test_a_file_that_is_not_utf8_or_too_large_is_refused(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes("name: x\ndescription: caf\xe9\n".encode("latin-1"))
    assert "f.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8" in refusal(path)
    path.write_text("name: x\n", encoding="utf-16")
    advice = f"the file is UTF-16; convert it: `iconv -f UTF-16 -t UTF-8 {path} > NEW`"
    assert f"f.yaml:1: byte 0xff is not UTF-8; {advice}" in refusal(path)
    data = tmp_path / "news.tsv"
    data.write_text("a\tb\n", encoding="utf-16")
    assert "news.tsv:1: byte 0xff is not UTF-8; `babeltune init FILE` makes a sweep file of text" in refusal(data)
    path.write_bytes(b"#" * 1_000_001)
    assert "1,000,001 bytes" in refusal(path)


@pytest.mark.parametrize("key", ["kind", "type"])
def test_a_set_whose_task_stands_under_another_key_names_the_right_one(tmp_path, key):
    text = written(tmp_path).read_text(encoding="utf-8")
    assert "task: sts" in text
    message = refusal(written(tmp_path, text.replace("task: sts", f"{key}: sts")))
    assert f"{key}: unknown key '{key}' with value 'sts'; allowed: " in message
    assert "; write task: sts" in message


def test_an_overlay_that_is_not_there_is_not_sought_among_sweep_files(tmp_path):
    message = refusal(written(tmp_path), overlays=[tmp_path / "tatoeba_113.yaml"])
    assert "did you mean 'search_spaces/evaluation/tatoeba_112.yaml'" in message
    assert "did you mean" not in refusal(written(tmp_path), overlays=["quickstrat.yaml"])


# --- `--with`, `--set`, variables -----------------------------------------------------------------------------------


def test_an_overlay_replaces_whole_sections_and_its_mistakes_carry_its_own_lines(tmp_path):
    path = written(tmp_path)
    overlay = written(tmp_path, "training:\n  pairs: 700\n", "more.yaml")
    sweep = read_sweep(path, overlays=[overlay])
    assert sweep.training.pairs == 700
    assert sweep.training.reports == 5, "the section is replaced, not merged"
    assert sweep.budget.trials == 3
    wrong = written(tmp_path, "# a comment\ntraining:\n  pears: 7\n", "wrong.yaml")
    assert f"{wrong}:3: training.pears: unknown key" in refusal(path, overlays=[overlay, wrong])
    assert f"{wrong}:3: traning: unknown key" in refusal(
        path, overlays=[written(tmp_path, "\n\ntraning: {}\n", "wrong.yaml")]
    )


def test_an_overlay_changes_a_part_of_a_section_or_adds_to_a_list(tmp_path):
    path = written(tmp_path)
    whole = read_sweep(path)
    more = written(tmp_path, "training.pairs: 700\ndata.test+: [" + TEST.format("late") + "]\n", "more.yaml")
    sweep = read_sweep(path, overlays=[more, written(tmp_path, more.read_text().replace("late", "later"), "last.yaml")])
    assert sweep.training == replace(whole.training, pairs=700)
    assert [task.name for task in sweep.data.test] == [*(task.name for task in whole.data.test), "late", "later"]
    assert sweep.data.dev == whole.data.dev
    only = read_sweep(path, overlays=[written(tmp_path, "data.test: [" + TEST.format("only") + "]\n", "only.yaml")])
    assert [task.name for task in only.data.test] == ["only"]


def test_an_overlay_adds_settings_to_those_that_are_searched(tmp_path):
    path = written(tmp_path)
    before = read_sweep(path).parameters
    more = written(tmp_path, "parameters+:\n  seed: {int: [0, 9]}\n", "more.yaml")
    assert list(read_sweep(path, overlays=[more]).parameters) == [*before, "seed"]
    wrong = written(tmp_path, "parameters+:\n  seed: {int: [0, 9]}\n  sead: {int: [0, 9]}\n", "wrong.yaml")
    with pytest.raises(SpecError, match=r"wrong\.yaml:3: parameters\.sead"):
        read_sweep(path, overlays=[wrong])
    of_list = written(tmp_path, "parameters+: [seed]\n", "list.yaml")
    with pytest.raises(SpecError, match=r"list\.yaml:1: parameters\+: .* .* adds to a list or a section"):
        read_sweep(path, overlays=[of_list])


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ("training.pears: 7", "more.yaml:1: training.pears: unknown key"),
        ("data.test+: [{name: late}]", "more.yaml:1: data.test.{}.source: this key is missing"),
        ("data.test+: late", "more.yaml:1: data.test+: 'late' is not possible; a key that ends in + adds to a list"),
        ("training.pairs+: [1]", "more.yaml:1: training.pairs+: 1000 is not possible; a key that ends in +"),
        ("data.tset+: [1]", "more.yaml:1: data.tset: unknown key 'tset'"),
        ("nothing.here: 1", "more.yaml:1: nothing.here: there is no section 'nothing' to change; give the whole"),
    ],
)
def test_a_wrong_part_of_a_section_is_named_with_the_overlays_line(overlay, words, tmp_path):
    path = written(tmp_path)
    sets = len(read_sweep(path).data.test)
    found = refusal(path, overlays=[written(tmp_path, overlay + "\n", "more.yaml")])
    assert words.format(sets) in found


def test_a_set_written_once_for_each_language_is_the_sweep_of_sets_written_out(tmp_path):
    template = "{name: late, source: {name: 'late_{x}', path: 'a/{x}-{y}.tsv', columns: {'{x}': '{y}', eng: eng}}}"
    each = template.replace("{name: late,", "{each: {x: [fra, deu], y: [f, d]}, name: late,")
    written_out = [template.replace("{x}", x).replace("{y}", y) for x, y in (("fra", "f"), ("deu", "d"))]
    path = written(tmp_path)
    sweep, other = (
        read_sweep(path, overlays=[written(tmp_path, f"data.test+: [{TEST.format('own')}, {sets}]\n", "more.yaml")])
        for sets in (each, ", ".join(written_out))
    )
    assert sweep == other
    assert sweep_id(sweep) == sweep_id(other)
    assert [task.source.path for task in sweep.data.test[-2:]] == ["a/fra-f.tsv", "a/deu-d.tsv"]
    assert sweep.data.test[-1].source.columns == {"deu": "d", "eng": "eng"}


def test_an_empty_table_of_a_set_is_as_none(tmp_path):
    one = "{name: late, EACH source: {name: late, path: 'a/{x}.tsv', columns: {fra: fra, eng: eng}}}"
    plain, empty = (
        read_sweep(written(tmp_path), overlays=[written(tmp_path, f"data.test: [{text}]\n", "more.yaml")])
        for text in (one.replace("EACH", ""), one.replace("EACH", "each: {},"))
    )
    assert plain == empty
    assert plain.data.test[0].source.path == "a/{x}.tsv"


@pytest.mark.parametrize(
    ("each", "words"),
    [
        ("null", "each: nothing is not possible; allowed: a mapping"),
        ("{x: []}", "each.x: [] is not possible; allowed: a name, and a list of texts such as [fra, deu]"),
        ("{x: [1]}", "each.x: [1] is not possible; allowed: a name, and a list of texts"),
        ("[fra]", 'each: ["fra"] is not possible; allowed: lists by name, such as {language: [fra, deu]}'),
        ("{x: [fra], z: [a]}", "each.z: nothing in this set has {z} to put the values into; add it, or remove 'z'"),
        ("{x: [fra], y: [a, b]}", "each: the lists go together and are equally long; they have: x 1, y 2"),
    ],
)
def test_a_wrong_table_of_a_set_is_named_with_its_line(each, words, tmp_path):
    task = "{name: 'late_{x}', each: EACH, source: {name: s, path: '{y}.tsv', columns: {fra: fra, eng: eng}}}"
    overlay = written(tmp_path, f"\ndata.test+:\n  - {task.replace('EACH', each)}\n", "more.yaml")
    found = refusal(written(tmp_path), overlays=[overlay])
    assert "more.yaml:3: data.test." in found
    assert words in found


@pytest.mark.parametrize(
    ("assignment", "found"),
    [
        ("training.pairs=500", lambda s: s.training.pairs == 500),
        ("data.train.0.cap=7", lambda s: s.data.train[0].cap == 7),
        ("data.train.0.cap=null", lambda s: s.data.train[0].cap is None),
        ("data.sampling.temperature=3", lambda s: s.data.sampling.temperature == 3),
        ("data.split={pairs: 9}", lambda s: s.data.split.pairs == 9),
        ("teacher.languages=[eng, fra]", lambda s: s.teacher.languages == ("eng", "fra")),
        ("description=a = b", lambda s: s.description == "a = b"),
        ("parameters.temperature={const: 0.5}", lambda s: s.parameters["temperature"].const == 0.5),
        ("parameters.temperature.log_float.1=0.3", lambda s: s.parameters["temperature"].log_float == (0.01, 0.3)),
        ("parameters.student.layers={int: [1, 3]}", lambda s: s.parameters["student.layers"].int == (1, 3)),
        ("parameters.student.layers.choice=[1, 3]", lambda s: s.parameters["student.layers"].choice == (1, 3)),
        ("parameters.training.learning_rate.log_float=[1e-5, 1e-4]",
         lambda s: s.parameters["training.learning_rate"].log_float == (1e-5, 1e-4)),
        ("config.labels=hard", lambda s: s.config == {"labels": "hard"}),
    ],
)  # fmt: skip
def test_set_changes_one_key(tmp_path, assignment, found):
    assert found(read_sweep(written(tmp_path), assignments=[assignment]))


def test_assignments_come_after_overlays_and_later_ones_win(tmp_path):
    overlay = written(tmp_path, "training: {pairs: 700}\n", "more.yaml")
    sweep = read_sweep(
        written(tmp_path),
        overlays=[overlay],
        assignments=["training.pairs=800", "training={reports: 2}", "training.pairs=900"],
    )
    assert (sweep.training.pairs, sweep.training.reports) == (900, 2)


def test_variables_are_replaced_in_paths_only(tmp_path):
    text = changed("path: talks.tsv", 'path: "${TALKS:-talks}.tsv"').replace(
        "name: small", 'name: small\ndescription: "${A}"'
    )
    assert read_sweep(written(tmp_path, text), environ={}).data.train[0].path == "talks.tsv"
    sweep = read_sweep(written(tmp_path, text), environ={"TALKS": "/x/more"})
    assert sweep.data.train[0].path == "/x/more.tsv"
    assert sweep.description == "${A}"
    text = changed("path: talks.tsv", 'path: "${TALKS}.tsv"')
    assert "small.yaml:13: data.train.0.path: '${TALKS}.tsv' needs the environment variable TALKS" in refusal(
        written(tmp_path, text), environ={}
    )


def test_column_numbers_may_be_written_as_numbers(tmp_path):
    sweep = read_sweep(
        written(tmp_path), assignments=["data.train.0.columns={eng: 0, fra: 1}", "data.train.0.header=false"]
    )
    assert sweep.data.train[0].columns == {"eng": "0", "fra": "1"}


# --- Sources and tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "format: pivot, left: talks, right: laws, join: eng",
        "format: moses, paths: {eng: a.en, fra: a.fr}",
        "paths: {eng: a.tsv, fra: b.tsv}, id: id",
        "paths: {eng: a.tsv, fra: b.tsv}, join: line",
        "format: hub, dataset: a/b, columns: {eng: a, fra: b}",
        "path: a.tsv, columns: {zho-CN: a, eng: b}, pairs: [zho-CN-eng]",
    ],
)
def test_a_source_has_the_fields_of_its_format(tmp_path, source):
    added = read_sweep(written(tmp_path, changed("  dev:\n", f"    - {{name: p, {source}}}\n  dev:\n"))).data.train[-1]
    given = yaml.safe_load(f"{{{source}}}")
    assert (added.name, added.format) == ("p", given.get("format", "tsv"))


def test_dev_metrics_are_means_and_subsets_named_as_the_tasks_say(tmp_path):
    sweep = read_sweep(written(tmp_path))
    metrics = dev_metrics(sweep)
    of_news = ("accuracy", "accuracy_forward", "accuracy_backward", "f1", "xsim_error", "xsim_error_pooled")
    means = (*(f"dev/news/{name}" for name in (*of_news, "xsim_error_forward")), "dev/graded/spearman")
    assert metrics[:10] == (*means, "dev/graded/pearson", "dev/news/fra-eng/accuracy")
    assert "dev/graded/eng/spearman" in metrics
    assert "dev/news/kor-eng/xsim_error" in metrics
    assert not any("heldout" in metric for metric in metrics)
    split = dev_metrics(read_sweep(written(tmp_path), assignments=["data.split={pairs: 5}"]))
    assert {"dev/heldout/accuracy", "dev/heldout/jpn-eng/accuracy", "dev/heldout/fra-eng/xsim_error"} <= set(split)
    both = dev_metrics(read_sweep(written(tmp_path), assignments=["data.dev.0.source.pairs=[eng-kor, fra-kor]"]))
    assert {"dev/news/kor-eng/accuracy", "dev/news/kor-fra/accuracy"} <= set(both), "the anchor stands second"
    assert "dev/news/fra-eng/accuracy" not in both
    assert not any(metric.startswith("dev/news/kor/") for metric in (*metrics, *both))
    each = dev_metrics(read_sweep(written(tmp_path), assignments=["data.dev.0.source.pairs=all"]))
    assert {"dev/news/kor/accuracy", "dev/news/eng/xsim_error_pooled"} <= set(each), "a mean for each language"


def test_the_teacher_encodes_right_sides_that_it_knows_and_that_compare(tmp_path):
    ask = "data.dev.0.right_model=teacher"
    sweep = read_sweep(written(tmp_path), assignments=[ask])
    assert dev_metrics(sweep) == dev_metrics(read_sweep(written(tmp_path))), "the names stay as they are"
    read_sweep(written(tmp_path), assignments=[ask, "data.dev.0.source.pairs=[eng-kor]"])
    mining = "{name: bucc, task: mining, gold: g, right_model: teacher, source: {name: b, id: id, paths: {PATHS}}}"
    read_sweep(written(tmp_path), assignments=["data.test=[" + mining.replace("PATHS", "fra: a, eng: b") + "]"])


@pytest.mark.parametrize(
    ("method", "config", "width"),
    [("dimension_reduction", "{dim: 128}", 128), ("bilingual_aligner", "{output: 64}", 64)],
)
def test_layers_behind_a_frozen_encoder_decide_whether_it_compares(tmp_path, method, config, width):
    changes = ["data.dev.0.right_model=teacher", f"method={method}", "parameters={}", "student={}"]
    message = refusal(written(tmp_path), assignments=[*changes, f"config={config}"])
    assert f"are {width} wide, the teacher's 384" in message
    assert "\n" not in message
    read_sweep(written(tmp_path), assignments=[*changes, f"config={config.replace(str(width), '384')}"])


# --- Ids, roots, files ----------------------------------------------------------------------------------------------


def test_the_id_depends_on_what_decides_results_and_on_nothing_else(tmp_path):
    sweep = read_sweep(written(tmp_path))
    assert sweep_id(sweep).startswith("small-")
    assert len(sweep_id(sweep)) == len("small-") + 10
    lines = FILE.splitlines(keepends=True)
    reordered = "".join([*lines[22:], *lines[:22]])
    same = [
        read_sweep(written(tmp_path, reordered)),
        read_sweep(written(tmp_path), assignments=["budget={trials: 99, minutes: 5, workers: 2}"]),
        read_sweep(written(tmp_path), assignments=["training.checkpoint_minutes=3", "training.capture=auto"]),
        read_sweep(written(tmp_path), assignments=["description=what I try", "promotion.name=other"]),
        read_sweep(written(tmp_path), assignments=["training.learning_rate=5e-4", "seed=0"]),
        read_sweep(written(tmp_path), assignments=["data.sampling.temperature=1"]),
        read_sweep(written(tmp_path), assignments=["data.clean.language=off"]),
        sweep_from(json.loads(json.dumps(plain(sweep)))),
    ]
    assert {sweep_id(other) for other in same} == {sweep_id(sweep)}
    other = [
        ["training.pairs=2000"], ["seed=1"], ["data.train.0.cap=99"], ["data.root=elsewhere"], ["student.layers=3"],
        ["parameters.temperature.log_float=[0.01, 0.3]"], ["scheduler.reduction=2"], ["name=big"],
        ["evaluation.prompt=x"], ["data.clean.language=drop"],
    ]  # fmt: skip
    ids = {sweep_id(read_sweep(written(tmp_path), assignments=assignments)) for assignments in other}
    assert len(ids | {sweep_id(sweep)}) == len(other) + 1


def test_the_id_is_the_same_on_machines_whose_data_lies_elsewhere(tmp_path):
    path = written(tmp_path, changed("root: .", 'root: "${BABELTUNE_SOMEWHERE:-../data}"'))
    here, there = (read_sweep(path, environ={"BABELTUNE_SOMEWHERE": str(tmp_path / name)}) for name in ("a", "b"))
    assert sweep_id(here) == sweep_id(there)
    (tmp_path / "a").mkdir()
    assert data_root(here, {"BABELTUNE_SOMEWHERE": str(tmp_path / "a")}) == (tmp_path / "a").resolve()
    with pytest.raises(SpecError, match=r"data\.root: .* which does not exist"):
        data_root(there, {"BABELTUNE_SOMEWHERE": str(tmp_path / "b")})


def test_a_root_that_is_a_circle_of_links_is_one_line(tmp_path):
    (tmp_path / "ring").symlink_to("ring")
    sweep = read_sweep(written(tmp_path, changed("root: .", f"root: {tmp_path / 'ring'}")))
    with pytest.raises(SpecError, match=r"data\.root: .* which does not exist"):
        data_root(sweep)


def test_bundled_is_the_package_folder_and_relative_roots_start_at_the_checkout(tmp_path):
    sweep = read_sweep(written(tmp_path))
    assert data_root(sweep) == repository()
    bundled = replace(sweep, data=replace(sweep.data, root="bundled:"))
    assert (data_root(bundled) / "sts.tsv").is_file()


def test_files_are_found_by_path_then_in_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_file("search_spaces/quickstart.yaml") == repository() / "search_spaces" / "quickstart.yaml"
    (tmp_path / "search_spaces").mkdir()
    mine = written(tmp_path / "search_spaces", FILE, "quickstart.yaml")
    assert find_file("search_spaces/quickstart.yaml").resolve() == mine
    with pytest.raises(SpecError, match=r"no file 'quikstart.yaml'; did you mean 'search_spaces/quickstart.yaml'\?"):
        find_file("quikstart.yaml")
    assert "local.yaml: this is a cluster file, not a sweep file; it goes behind --cluster" in refusal(
        "clusters/local.yaml"
    )


def test_the_data_of_an_overlay_can_be_read_alone(tmp_path):
    text = with_files(tmp_path)
    path = written(tmp_path, text[text.index("data:") : text.index("student:")], "data.yaml")
    data, root = read_data(path)
    assert [task.name for task in data.dev] == ["news", "graded"]
    assert root == tmp_path
    with pytest.raises(SpecError, match="has no section `data`"):
        read_data(written(tmp_path, "training: {}\n", "t.yaml"))
    wrong = written(tmp_path, path.read_text().replace("cap: 100", "cap: 0"), "wrong.yaml")
    with pytest.raises(SpecError, match=r"wrong.yaml:7: data.train.0.cap: 0 must be at least 1"):
        read_data(wrong)
    (tmp_path / "sts.tsv").unlink()
    with pytest.raises(SpecError, match=r"data.yaml:\d+: data.dev.1.path: .*sts.tsv"):
        read_data(path)
    hub = written(
        tmp_path, path.read_text().replace("path: laws.tsv", "format: hub\n      dataset: a/laws"), "hub.yaml"
    )
    with pytest.raises(SpecError, match=r"'a/laws' is not a folder.*HF_HUB_OFFLINE is set"):
        read_data(hub, environ={"HF_HUB_OFFLINE": "1"})


def test_a_data_set_that_many_sets_read_is_missing_once(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    overlay = "search_spaces/evaluation/tatoeba_36.yaml"
    lines = refusal("search_spaces/static.yaml", overlays=[overlay], reachable=True).splitlines()
    assert len([line for line in lines if "'mteb/tatoeba-bitext-mining' is not a folder" in line]) == 1


def test_the_main_jobs_file_can_count_compute():
    sweep = read_sweep("search_spaces/encoder.yaml", assignments=["budget.unit=compute", "training.compute=5"])
    assert sweep.training.compute == 5


def test_a_problem_of_a_method_names_its_key(tmp_path):
    sweep = read_sweep(written(tmp_path))
    assert list(method_problems(sweep)) == []
    ((key, problem),) = method_problems(replace(sweep, method="nothing"))
    assert key == ("method",)
    assert problem.startswith("'nothing': no method")


# --- Models and data sets -------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """How long the hub was given to answer, for each time that it was asked."""
    given = []
    for name in ("model_info", "dataset_info"):
        real = getattr(huggingface_hub.HfApi, name)

        def ask(*arguments, real=real, **settings):
            given.append(settings["timeout"])
            return real(*arguments, **settings)

        monkeypatch.setattr(huggingface_hub.HfApi, name, ask)
    return given


def test_a_name_that_nobody_can_reach_is_refused_with_its_line_and_nobody_is_asked(tmp_path, asked):
    text = changed("layers: 2, width: 64, heads: 4", "model: no-such-team/no-such-model")
    path = written(tmp_path, text)
    message = refusal(path, reachable=True, environ={"HF_HUB_OFFLINE": "1"})
    assert not asked
    assert "small.yaml:23: student.model: 'no-such-team/no-such-model' is not a folder" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert "set HF_HOME" in message


def test_without_the_offline_switch_a_dead_network_is_noticed_at_the_first_name(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    text = changed("path: laws.tsv", "format: hub\n      dataset: no-such-team/laws")
    sweep = read_sweep(
        written(tmp_path, with_files(tmp_path, text)), assignments=["teacher.model=no-such-team/teacher"]
    )
    with pytest.raises(SpecError) as caught:
        check_reachable(sweep, {})
    assert asked == [5.0], "once, and it is given five seconds"
    teacher, laws = str(caught.value).splitlines()
    assert teacher.startswith("teacher.model: 'no-such-team/teacher'")
    assert laws.startswith("data.train.1.dataset: 'no-such-team/laws'")
    assert "does not answer" in teacher


def test_a_file_that_is_not_there_is_refused_with_its_line_before_anything_starts(tmp_path):
    path = written(tmp_path, with_files(tmp_path))
    assert read_sweep(path, reachable=True)
    (tmp_path / "laws.tsv").rename(tmp_path / "law.tsv")
    (tmp_path / "sts.tsv").unlink()
    message = refusal(path, assignments=["data.words.stop_list={eng: stop.txt}"], reachable=True)
    assert re.search(r"data\.words\.stop_list\.eng: .* holds no 'stop\.txt'", message)
    assert "small.yaml:17: data.train.1.path: " in message
    assert "holds no 'laws.tsv'; did you mean 'law.tsv'?" in message
    assert "small.yaml:22: data.dev.1.path: " in message


def test_folders_and_cached_models_are_reachable_offline(tmp_path, monkeypatch):
    import huggingface_hub.constants

    snapshot = tmp_path / "cache" / "models--team--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    path = written(tmp_path, with_files(tmp_path))
    for model in ("team/model", str(tmp_path / "model")):
        check_reachable(read_sweep(path, assignments=[f"student.model={model}"]), {"HF_HUB_OFFLINE": "1"})
    sweep = read_sweep(path, assignments=[f"parameters.student.model={{choice: [team/model, {tmp_path}/nothing]}}"])
    with pytest.raises(SpecError, match=r"^parameters\.student\.model: '.*nothing' .*not a name that the hub can have"):
        check_reachable(sweep, {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("key", ["model", "beside.0.model"])
def test_an_unknown_bundled_teacher_is_refused(tmp_path, key):
    beside = ["teacher.beside=[{model: team/another}]"] if "beside" in key else []
    sweep = read_sweep(written(tmp_path), assignments=[*beside, f'teacher.{key}="bundled:other"'])
    with pytest.raises(SpecError, match=f"teacher.{key}: 'bundled:other' is not bundled; allowed: bundled:all-MiniLM"):
        check_reachable(sweep)


def test_an_encoder_beside_others_that_nobody_can_reach_is_refused(tmp_path):
    sweep = read_sweep(written(tmp_path), assignments=["teacher.beside=[{model: team/another}]"])
    with pytest.raises(SpecError, match=r"teacher\.beside\.0\.model: 'team/another' is not a folder"):
        check_reachable(sweep, {"HF_HUB_OFFLINE": "1"})


# --- What is shipped ------------------------------------------------------------------------------------------------


FILES = [
    path.relative_to(repository()).as_posix()
    for path in sorted((repository() / "search_spaces").rglob("*.yaml"))
    if path.parent.name != "transfer"  # for another command: tests/apps/transfer/test_hub_sets.py
]
MULTILINGUAL = "search_spaces/teachers/multilingual.yaml"
SHIPPED = [name for name in FILES if "\nmethod: " in (repository() / name).read_text(encoding="utf-8")]
EVALUATED = [name for name in FILES if Path(name).parent.name == "evaluation"]  # for `babeltune evaluate`
EVALUATIONS = [name for name in EVALUATED if Path(name).name not in ("mteb_bitext.yaml", "bought.yaml")]
"""Those that add to a sweep's test sets."""
FROM_HUB = (
    "search_spaces/pretrained.yaml",
    "search_spaces/ladder.yaml",
    "search_spaces/reproduce/chen_encoder.yaml",
    "search_spaces/reproduce/chen_encoder_start.yaml",
)
"""Their students begin as a model of the hub."""
OVERLAYS = [name for name in FILES if name not in (*SHIPPED, *EVALUATED)]  # what needs a sweep file beside it


@cache
def static_folder():
    return static_model(mkdtemp(), dim=128)


def promoted(name):
    """The folder of a registered model: some sentence-transformers model, a static one where tokens are taken."""
    assert name.startswith("models:/")
    return static_folder() if "tokens" in name else str(teacher_folder(Teacher()))


def test_a_registered_model_is_replaced_by_its_folder(tmp_path):
    old = "student: {layers: 2, width: 64, heads: 4, projection: teacher}"
    path = written(tmp_path, changed(old, 'student: {model: "models:/first@champion", projection: teacher}'))
    asked = []

    def fetch(name):
        asked.append(name)
        return str(tmp_path)

    def missing(name):
        raise PromotionError(f"the store has no {name}")

    assert read_sweep(path, check=False, fetch=fetch).student.model == str(tmp_path)
    assert asked == ["models:/first@champion"]
    for how, words in ((None, "which is not asked here"), (missing, "the store has no models:/first@champion")):
        with pytest.raises(SpecError, match=rf"small.yaml:\d+: student.model: .*{words}"):
            read_sweep(path, check=False, fetch=how)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_sweep_is_valid(name, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_MADE", str(tmp_path))
    for language in ("hau", "kin", "swh", "zul"):  # what a table's own sweep reads is made when the table is run
        (tmp_path / f"{language}-eng.tsv").write_text(f"id\t{language}\teng\n0\tsentence\tsentence\n")
    sweep = read_sweep(name, fetch=promoted)
    assert sweep.objectives[0].metric in dev_metrics(sweep)
    if "papers" not in name and name not in FROM_HUB:
        on_this_machine(sweep)


def test_paper_1s_sts_are_groups_of_its_sets():
    """Park et al.'s result_parse: STS(en) is the mean of eight sets, the others have one each."""
    groups = {}
    for task in read_sweep("search_spaces/papers/soft_contrastive.yaml").data.test:
        if task.task == "sts":
            groups.setdefault(task.group, []).append((task.name, task.language, task.language2))
    english = [*("sts12", "sts13", "sts14", "sts15", "sts16", "sts17", "sts22", "stsb")]
    assert sorted(groups.pop("sts_en")) == [(name, "en", None) for name in english]
    assert groups == {
        "sts_ko": [("sts17", "ko", None)],
        "sts_en_fr": [("sts17", "fr", "en")],
        "sts_fr": [("sts22", "fr", None)],
        "sts_ru": [("sts22", "ru", None)],
    }


def on_this_machine(sweep):
    """Everything that the sweep names can be had; real text is not everywhere."""
    try:
        data_root(sweep)
    except SpecError:
        pytest.skip(f"{sweep.data.root} is not here")
    check_reachable(sweep, dict(os.environ) | {"HF_HUB_OFFLINE": "1"})


def commands_of(name):
    """The commands at the head of a shipped file: the sweep file, the overlays and the settings of each."""
    text = (repository() / name).read_text(encoding="utf-8")
    for line in re.findall(r"^#   babeltune submit (.*)$", text, re.MULTILINE):
        file, *options = shlex.split(line)
        assert set(options[::2]) <= {"--with", "--set"}
        values = list(zip(options[::2], options[1::2], strict=True))
        yield file, *([value for name, value in values if name == option] for option in ("--with", "--set"))


@pytest.mark.parametrize("name", [name for name in SHIPPED if "/papers/" in name])
def test_every_sweep_of_a_paper_says_its_commands_and_these_are_valid(name):
    commands = list(commands_of(name))
    assert (name, [], []) in commands
    for file, overlays, settings in commands:
        if any("models:/" in setting for setting in settings):
            settings.append("student.pooling=mean")  # as the promoted model's stand-in has
        sweep = read_sweep(file, overlays=overlays, assignments=settings, fetch=promoted)
        assert sweep.objectives[0].metric in dev_metrics(sweep)


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_says_with_which_command_it_is_used_and_that_is_a_valid_sweep(name):
    ((file, overlays, settings),) = commands_of(name)
    assert name in overlays
    assert not settings
    sweep = read_sweep(file, overlays=overlays, fetch=promoted)
    assert sweep.objectives[0].metric in dev_metrics(sweep)
    if "papers" not in file:
        on_this_machine(sweep)
    if name == MULTILINGUAL:
        assert {pair.split("-")[0] for pair in pairs_of(sweep)} <= set(sweep.teacher.languages)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_is_added_to_the_sweep_that_it_names(name):
    ((file, overlays, _),) = commands_of(name)
    assert overlays == [name]
    own = read_sweep(file).data
    data = read_sweep(file, overlays=overlays).data
    assert (data.train, data.dev, data.test[: len(own.test)]) == (own.train, own.dev, own.test)
    added = data.test[len(own.test) :]
    assert added
    assert name.endswith("bucc_mining.yaml") or all(task.source.format == "hub" for task in added)


def test_config_paper_gives_each_method_its_printed_settings_less_those_searched(tiny_file):
    names = ["soft_contrastive", "laser3_co"]
    given = ["config=paper", f"parameters.method={{choice: {names}}}"]
    sweep = read_sweep(tiny_file, assignments=given)
    for name in names:
        config = make_trial(sweep, 0, {"method": name, "temperature": 0.07}).config
        assert config == {**plain(load_method(name).Config.paper()), "temperature": 0.07}
    assert sweep_id(sweep) != sweep_id(read_sweep(tiny_file, assignments=given[1:]))
    assert sweep_from(plain(sweep)) == sweep


def test_the_papers_grid_is_one_sweep_of_its_students_for_each_of_its_teachers():
    file = "search_spaces/papers/soft_contrastive_grid.yaml"
    commands = list(commands_of(file))
    assert {name for name, *_ in commands} == {file}
    sweeps = [read_sweep(name, overlays=overlays) for name, overlays, _ in commands]
    assert [sweep.teacher.model.split("/")[1] for sweep in sweeps] == [
        "multilingual-e5-base",
        "e5-base",
        "all-mpnet-base-v2",
    ]
    assert len({sweep_id(sweep) for sweep in sweeps}) == 3
    assert {len(sweep.parameters["student.model"].choice) for sweep in sweeps} == {2}
    trial = make_trial(sweeps[0], 0, {"student.model": "FacebookAI/xlm-roberta-base", "seed": 0})
    assert (trial.config["labels"], trial.config["tcm"]) == ("priority", False), "equation 2 alone"


def pairs_of(sweep):
    """The language pairs of a sweep's training text, anchor first."""
    by_name = {source.name: source for source in sweep.data.train}
    priority = sweep.data.anchor_priority
    return {"-".join(p) for s in sweep.data.train for p in source_pairs(s, by_name, priority)}


def test_a_teacher_that_knows_english_alone_is_refused_pairs_without_it():
    with pytest.raises(SpecError, match="anchor side, which is in"):
        read_sweep("search_spaces/soft_contrastive.yaml", overlays=["search_spaces/pairs/fr_xx.yaml"])
    read_sweep("search_spaces/soft_contrastive.yaml", overlays=["search_spaces/pairs/en_xx.yaml"])


@pytest.mark.parametrize(("name", "count"), [("en_xx", 4), ("fr_xx", 7), ("ru_xx", 7), ("all", 10)])
def test_pairs_are_those_that_their_file_is_named_after(name, count):
    overlays = [f"search_spaces/pairs/{name}.yaml", MULTILINGUAL]
    assert len(pairs_of(read_sweep("search_spaces/soft_contrastive.yaml", overlays=overlays, fetch=promoted))) == count


@pytest.mark.long
@pytest.mark.slow
def test_every_pivot_of_real_text_joins_something():
    try:
        data, root = read_data("search_spaces/pairs/all.yaml")
    except SpecError:
        pytest.skip("the real text is not here")
    pivots = [source for source in data.train if source.format == "pivot"]
    read = {s.name: read_source(s, root, others={}) for s in data.train if s.format != "pivot" and s.columns}
    rows = {source.name: len(read_source(source, root, others=read)) for source in pivots}
    assert len(rows) == 11
    assert min(rows.values()) > 20, rows


@pytest.mark.parametrize("name", [name for name in SHIPPED if "reproduce" in name])
def test_a_kept_table_has_as_many_seeds_for_every_setting(name):
    sweep = read_sweep(name, fetch=promoted)
    assert sweep.name.startswith((Path(name).stem, "multilingual_teacher"))
    points = [{key: value for key, value in point.items() if key != "seed"} for point in sweep.sampler.points]
    if points:
        seeds = {point["seed"] for point in sweep.sampler.points}
        assert sweep.budget.trials == len(points)
        assert {points.count(point) for point in points} == {len(seeds)}
        assert len(seeds) > 1


@pytest.mark.parametrize("pairs", ['"anchor"', '"all"', "[kor-fra, eng-fra, rus-eng]"])
@pytest.mark.parametrize("priority", ["[eng]", "[kor, eng]"])
def test_dev_metrics_and_language_pairs_are_those_of_the_corpus(pairs, priority):
    settings = [
        f"data.anchor_priority={priority}",
        f"data.dev.0.source.pairs={pairs}",
        f"data.train.0.pairs={pairs}",
        "data.train.1.train=false",
        "data.split={pairs: 20}",
    ]
    sweep = read_sweep("search_spaces/quickstart.yaml", assignments=settings, check=False)
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed)
    names = {(task.name, task.subset) for task in corpus.tasks}
    if pairs == '"all"':
        names |= {
            (task.name, code) for task in corpus.tasks for code in task.subset.split("-") if task.kind == "bitext"
        }
    metrics = [metric.split("/") for metric in dev_metrics(sweep)]
    assert {(metric[1], metric[2]) for metric in metrics if len(metric) == 4} == names
    anchors, others = taught_languages(sweep)
    assert {tuple(group.split("-")) for group in corpus.groups} <= {(a, b) for a in anchors for b in others}
    assert {group.split("-")[0] for group in corpus.groups} == set(anchors)


def test_a_clustering_sets_metrics_are_those_of_its_languages_and_of_their_mixture(tmp_path):
    old = "{name: graded, task: sts, path: sts.tsv, language: eng}"
    topics = "{name: sib, task: clustering, source: {name: t, id: id, paths: {eng: a.tsv, zho: b.tsv}}, label: topic}"
    metrics = dev_metrics(read_sweep(written(tmp_path, changed(old, topics))))
    assert [m for m in metrics if "sib" in m] == [
        *("dev/sib/ari", "dev/sib/v_measure"),
        *(f"dev/sib/{subset}/{metric}" for subset in ("eng", "zho", "mixed") for metric in ("ari", "v_measure")),
    ]
    text = changed(old, topics).replace("metric: dev/news/accuracy", "{metric: dev/sib/mixed/ari, goal: minimize}")
    assert "is better the higher it is" in refusal(written(tmp_path, text))


def test_a_setting_of_one_method_is_not_judged_by_another_that_has_its_name():
    """`variant` is a setting of LASER3-CO and of LEALLA."""
    assert list(method_problems(read_sweep("search_spaces/all_methods.yaml", check=False))) == []


OURS = sorted(name for name, place in available().items() if place.startswith("babeltune_methods."))
"""Read before the toy methods are installed."""


def test_the_baselines_are_among_our_methods():
    assert {"soft_contrastive", "mse_distillation", "translation_ranking", "combined"} < set(OURS)


@pytest.mark.parametrize("method", OURS)
def test_every_method_has_a_sweep_offline_and_one_with_its_papers_settings(method):
    files = [f"search_spaces/{method}.yaml", f"search_spaces/papers/{method}.yaml"]
    if method == "combined":  # no paper's
        del files[1]
    for file in files:
        assert file in SHIPPED, file
        assert read_sweep(file, check=False).method == method
    assert read_sweep(files[0], check=False).data.root == "bundled:"


def test_what_a_model_costs_is_an_objective_after_the_first():
    accuracy, least = "{metric: dev/everyday/accuracy}", "{metric: model/parameters, goal: minimize}"
    fastest = "{metric: model/sentences_per_second}"
    given = read_sweep("search_spaces/quickstart.yaml", assignments=[f"objectives=[{accuracy}, {least}, {fastest}]"])
    assert [(o.metric, o.goal) for o in given.objectives[1:]] == [
        ("model/parameters", "minimize"),
        ("model/sentences_per_second", "maximize"),
    ]


@pytest.mark.trap(40)
@pytest.mark.parametrize("metric", ["train/loss", "train/kl", "dev/everyday/loss", "loss"])
def test_a_loss_is_no_objective(metric):
    """METHODS D40: between temperatures, labels and methods, losses cannot be compared."""
    assignments = [f"objectives=[{{metric: {metric}, goal: minimize}}]"]
    words = rf"objectives\.0\.metric: '{metric}' is no objective: .*; allowed: dev/"
    with pytest.raises(SpecError, match=words) as caught:
        read_sweep("search_spaces/quickstart.yaml", assignments=assignments)
    assert "each changes what a loss of 1 means: a soft cross-entropy cannot fall below the entropy" in str(
        caught.value
    )
    temperature = "parameters={training.learning_rate: {log_float: [1e-4, 1e-3]}}"
    with pytest.raises(SpecError, match="the next setting that is searched, such as the temperature, would change"):
        read_sweep("search_spaces/quickstart.yaml", assignments=[*assignments, temperature])


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("student.pooling=cls", "student.pooling: 'cls': "),
        ("student.pooling=pooler", "set student.pooling to that (a dense layer after it, with tanh or not, comes with"),
        ("student.max_tokens=4000", "student.max_tokens: 4000 is more than the 512 positions of "),
        ("student.projection=100", "student.projection: 100: "),
    ],
)
def test_a_student_that_its_own_files_contradict_is_refused(tmp_path, assignment, expected):
    folder = tmp_path / "model"
    files = {
        "config.json": {"hidden_size": 384, "max_position_embeddings": 512},
        "modules.json": [{"type": "st.models.Pooling", "path": "1"}, {"type": "st.models.Dense", "path": "2"}],
        "1/config.json": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
        "2/config.json": {"in_features": 384, "out_features": 256},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    named = ["parameters={temperature: {const: 0.1}}", f"student={{model: {folder}}}", assignment]
    with pytest.raises(SpecError) as caught:
        read_sweep("search_spaces/quickstart.yaml", assignments=named)
    assert expected in str(caught.value)


def test_the_quickstart_is_promoted_only_above_chance_and_the_untrained_student():
    sweep = read_sweep("search_spaces/quickstart.yaml")
    (gate,) = sweep.promotion.gates
    assert (gate.times_chance, gate.times_untrained) == (5, 2)
    (rows,) = [rows for rows in read_eval(sweep.data.test, data_root(sweep)) if rows.task.name == gate.test]
    assert {"fra", "jpn", "kor", "rus"} < set(rows.columns)
    assert len(rows.columns["eng"]) >= 100


def test_a_choice_may_put_a_word_or_nothing_beside_numbers(tiny_file):
    for name, values in (("student.projection", "[teacher]"), ("student.vocabulary", "[1000, teacher]")):
        sweep = read_sweep(tiny_file, assignments=[f"parameters.{name}={{choice: {values}}}"])
        assert sweep.parameters[name].choice


OVERLAYS = [name for name in FILES if name not in SHIPPED]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_that_is_run_as_a_sweep_says_with(name):
    path = repository() / name
    with pytest.raises(SpecError, match=rf"an overlay, not a sweep file: .*`SWEEP\.yaml --with {path}`"):
        read_sweep(path)


def test_a_recorded_sweep_may_have_the_defaults_of_other_formats():
    sweep = read_sweep(repository() / "search_spaces" / "quickstart.yaml")
    recorded = plain(sweep)
    recorded["data"]["train"][0] |= {"left": None, "sheet": None, "delimiter": ",", "split": "train"}
    assert sweep_from(recorded) == sweep
    recorded["data"]["train"][0]["delimiter"] = ";"
    with pytest.raises(SpecError, match=r"train\.0\.delimiter: ';' is for format 'csv'"):
        sweep_from(recorded)
