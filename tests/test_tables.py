"""The papers' tables: each page is what its record says, verdicts follow from figures, and a small table runs whole."""

import gzip
import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import norm, t
from sklearn.metrics import adjusted_rand_score

from babeltune.data.alignment import stop_lists
from babeltune.data.prepared import TextTask
from babeltune.data.teacher import teacher_folder
from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Teacher
from babeltune.training.compute import COUNTED, first_batches, with_length
from benchmarks.tables import back_translation, choices, page
from benchmarks.tables.__main__ import TABLES, check, show_plan, take_words, with_commit
from benchmarks.tables.__main__ import main as tables
from benchmarks.tables.choices import NO_STUDENT
from benchmarks.tables.cpu import CpuSeconds
from benchmarks.tables.curve import dims_of
from benchmarks.tables.definition import MEGABYTES, PAIRS, START, UNTRAINED, Claim, Column, Row, Table
from benchmarks.tables.mao_dims import DIMS
from benchmarks.tables.reasons import REASONS, reason_of
from benchmarks.tables.record import at_equal_rates, run
from benchmarks.tables.sampling import Scored, ari_of, sampling_error
from benchmarks.tables.spread import SHARES, density, percentiles_of, target_similarities
from benchmarks.tables.sweeps import Trained, assignments, next_rate, planned, search_points
from benchmarks.tables.verdict import UNCHECKED, Judged, disagreements, judge, verdict
from benchmarks.tables.words import with_words
from small_models import static_model

ROOT = Path(__file__).parents[1]
RECORDS = {record["name"]: record for record in page.read_records()}
METRIC = "test/everyday/accuracy"
SMALL = Table(
    name="small",
    title="A small table",
    paper="Nobody 2000, table 1.",
    budget="nothing.",
    ours="A tiny student.",
    sweep="",
    rows=(Row(name="hard", settings={"labels": "hard"}), Row(name="soft", settings={"labels": "priority"})),
    columns=(Column(metric=METRIC, title="everyday"),),
    claims=(Claim(better="soft", worse="hard", metrics=(METRIC,), paper="table 1: 2 against 1"),),
    logged={
        "train/label_entropy": "label entropy",
        "train/of_another_method": "of another method",
        PAIRS: "pairs",
        MEGABYTES: "MB",
    },
    uses={METRIC: "find everyday sentences"},
    limits="It is a small table.",
    rates=(1e-3, 3e-3),
    seeds=(0, 1),
)


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_is_what_its_record_generates(name):
    assert (ROOT / page.PAGES / f"{name}.md").read_text(encoding="utf-8") == page.page(RECORDS[name], RECORDS.values())


def test_the_index_and_the_sites_contents_name_every_page():
    written = {path.stem for path in (ROOT / page.PAGES).glob("*.md")} - {"index"}
    assert written == set(RECORDS) <= set(TABLES)
    assert (ROOT / page.PAGES / "index.md").read_text(encoding="utf-8") == page.index(RECORDS.values())
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"tables/{name}.md" in listed for name in (*written, "index"))


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_its_figures_depend_on(name):
    record, table = RECORDS[name], TABLES[name]
    for row in record["rows"]:
        assert all(len(values) == len(record["run"]["seeds"]) == len(table.seeds) for values in row["values"].values())
        assert {row["sweep"]} <= set(record["run"]["sweeps"])
    assert "dirty" not in record["run"]["commit"]
    assert record["run"]["cpu_seconds"] > 0
    assert any(name.startswith("test/") for name in record["run"]["data"])


@pytest.mark.parametrize(
    "name", ["park_labels", "park_one_pair", "park_teachers", "park_pairs", "park_pairs_alike", "park_gather"]
)
def test_labels_at_the_matched_temperature_are_as_hard_as_those_of_e5(name):
    other = re.compile(r"\d$|half|quarter")  # another temperature, or a part of the batch
    rows = [row for row in RECORDS[name]["rows"] if not other.search(row["name"])]
    own_shares = [value for row in rows for value in row["logged"].get("train/label_own", ())]
    assert own_shares
    assert all(0.08 < value < 0.1 for value in own_shares)


@pytest.mark.parametrize("name", RECORDS)
def test_the_words_rows_columns_and_claims_of_a_record_are_its_definitions(name):
    record, table = RECORDS[name], TABLES[name]
    assert with_words(record, table) == record
    claims = [(claim, metric) for claim in table.claims for metric in claim.metrics]
    for recorded, (claim, metric) in zip(record["claims"], claims, strict=True):
        words = {key: recorded[key] for key in ("better", "worse", "paper", "times", "kind", "margin")}
        assert words | {"metrics": claim.metrics} == asdict(claim)
        assert recorded["metric"] == metric
    assert [row["name"] for row in record["rows"]] == [row.name for row in table.rows]
    for key in ("title", "paper", "budget", "ours", "logged"):
        assert record[key] == getattr(table, key)


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)


def has_history():
    """Whether this is a clone with all commits, and no archive or shallow clone."""
    result = git("rev-parse", "--show-toplevel", "--is-shallow-repository")
    return result.returncode == 0 and result.stdout.split("\n")[:2] == [str(ROOT), "false"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_of_a_commit_that_this_one_comes_from(name):
    if not has_history():
        pytest.skip("there is no git history here")
    commit = RECORDS[name]["run"]["commit"]
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit


def test_a_record_takes_the_words_of_its_definition_and_keeps_its_figures(tmp_path):
    original, table = RECORDS["mao_dims"], TABLES["mao_dims"]
    page.write(original, tmp_path)
    first, *others = table.claims
    column, *columns = table.columns
    words = (replace(column, title="another column"), *columns), (replace(first, paper="another place"), *others[1:])
    changed = replace(table, title="Another title", columns=words[0], claims=words[1])
    written = take_words(changed, tmp_path).read_text(encoding="utf-8")
    assert all(words in written for words in ("# Another title", "| another column |", "| another place |"))
    (record,) = page.read_records(tmp_path)
    assert (record["rows"], record["run"]) == (original["rows"], original["run"])
    assert len(record["claims"]) == len(original["claims"]) - 1
    (one, *_), (before, *_) = record["claims"], original["claims"]
    assert {**one, "paper": before["paper"]} == before


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--check", "--cluster", "missing.yaml"], "error: no file 'missing.yaml'"),
        (["--check", "--words"], "argument --words: not allowed with argument --check"),
    ],
)
def test_bad_words_of_the_command_are_one_line(words, answer, capsys):
    with pytest.raises(SystemExit) as ended:
        tables(["park_gather", *words])
    assert ended.value.code not in (None, 0)
    assert answer in f"{ended.value.code}{capsys.readouterr().err}"


def test_orders_that_are_judged_anew_keep_the_commit_that_trained_the_rows(tmp_path):
    original = RECORDS["mao_dims"]
    page.write(original, tmp_path)
    now = {**original, "run": {**original["run"], "commit": "now"}}
    assert with_commit(now, tmp_path)["run"]["commit"] == original["run"]["commit"]
    other = {**now, "run": {**now["run"], "sweeps": ["another"]}}
    assert with_commit(other, tmp_path)["run"]["commit"] == "now"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rates": (1e-3,)}, "rows"),
        ({"seeds": (0, 1)}, "seeds"),
        ({"rows": TABLES["mao_dims"].rows[1:], "claims": ()}, "rows"),
        ({"columns": TABLES["mao_dims"].columns[1:]}, "columns"),
        ({"start_name": None, "claims": ()}, "a start"),
        ({"claims": (replace(TABLES["mao_dims"].claims[0], margin=0.5),)}, "no order of start and 512 dimensions"),
    ],
)
def test_a_record_takes_no_words_of_a_table_that_measures_anything_else(change, why, tmp_path):
    page.write(RECORDS["mao_dims"], tmp_path)
    content = (tmp_path / page.RECORDS / "mao_dims.json").read_bytes()
    with pytest.raises(SystemExit, match=f"run it again: {why}"):
        take_words(replace(TABLES["mao_dims"], **change), tmp_path)
    assert (tmp_path / page.RECORDS / "mao_dims.json").read_bytes() == content


@pytest.mark.parametrize("name", RECORDS)
def test_a_records_differences_are_those_of_its_rows(name):
    values = {row["name"]: row["values"] for row in RECORDS[name]["rows"]}
    seeds = len(RECORDS[name]["run"]["seeds"])
    for single in (UNTRAINED, START):
        values[single] = {column["metric"]: [column.get(single)] * seeds for column in RECORDS[name]["columns"]}
    for claim in RECORDS[name]["claims"]:
        pairs = zip(values[claim["better"]][claim["metric"]], values[claim["worse"]][claim["metric"]], strict=True)
        expected = [a - claim["times"] * b for a, b in pairs]
        assert claim["differences"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_order_holds_only_if_both_intervals_exclude_zero(name):
    for claim in RECORDS[name]["claims"]:
        outcome, differences = verdict(claim, RECORDS[name]).outcome, np.array(claim["differences"])
        sign = -1 if "error" in claim["metric"] else 1
        half = t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / math.sqrt(len(differences))
        half = max(half, 1.96 * claim["sentence_error"])
        if claim["kind"] == "above" and outcome != "undecided":
            assert outcome == ("holds" if sign * differences.mean() > 0 else "fails")
            assert abs(differences.mean()) > half


def speeds_of(**rows):
    """A record of rows with these parameters and speeds by seed."""
    logged = {name: {PARAMETERS: [parameters], SPEED: speeds} for name, (parameters, *speeds) in rows.items()}
    return {"rows": [{"name": name, "changes": [], "logged": values} for name, values in logged.items()]}


def test_rows_whose_speeds_differ_by_the_machines_noise_are_not_ordered():
    static = {name: (9, speed, 60_000) for name, speed in (("one", 90_000), ("two", 60_000), ("three", 70_000))}
    first, second = choices.speeds_of(speeds_of(**static, slow=(7, 1_000, 1_100), slower=(6, 900)))
    assert first == "Sentences a second: 900 to 1,100 (`slower`, `slow`), then 60,000 to 90,000 (3 rows)."
    assert "a factor of 1.50" in second
    apart, _ = choices.speeds_of(speeds_of(fast=(9, 1_500), slow=(7, 1_000), slower=(6, 900)))
    assert apart == "Sentences a second: 900 to 1,000 (`slower`, `slow`), then 1,500 (`fast`)."
    assert choices.speeds_of(RECORDS["mao_terms"]) == []
    record = speeds_of(whole=(9, 1_500), layer=(1, 90_000))
    record["rows"][1]["changes"] = ["method=dimension_reduction", NO_STUDENT]
    assert choices.speeds_of(record)[0] == "Sentences a second: 1,500 (`whole`).", "of layers alone, it is no model's"


def test_the_advice_of_a_record_orders_no_two_rows_of_one_architecture():
    record = RECORDS["which_method"]
    rows = {row["name"]: row["logged"][PARAMETERS][0] for row in record["rows"]}
    sentence, _ = choices.speeds_of(record)
    for group in sentence.split(", then "):
        names = [name for name in rows if f"`{name}`" in group]
        assert not {rows[name] for name in names} & {rows[name] for name in rows.keys() - names}
    assert any(f"({count} rows)" in sentence for count in Counter(rows.values()).values())


def test_a_record_of_unpaired_xsim_errors_says_so():
    record = RECORDS["tan_bt"]
    for paired in (True, False):
        written = page.page({**record, "run": {**record["run"], "paired": paired}})
        assert (page.UNPAIRED in written) != paired
    assert page.UNPAIRED not in page.page(RECORDS["mao_terms"])


NOT_PRINTED = {
    "chen_losses": ("N = 8", "N = 32", "N = 128"),
    "li_depth": ("without dropout",),
    "mao_dims": (),
    "mao_shapes": (),
    "mao_terms": ("beta 1", "beta 10", "beta 100"),
    "tan_bt": (),
    "tan_variants": (),
}
"""Table whose paper prints no order for our text -> the settings of rows that the paper does not print either."""


@pytest.mark.parametrize("name", NOT_PRINTED)
def test_a_claim_says_that_its_paper_prints_another_score_language_or_setting(name):
    for claim in TABLES[name].claims:
        _, _, extended = claim.paper.partition("extended by us to ")
        assert extended
        rows = f"{claim.better}; {claim.worse}".replace("no dropout", "without dropout")
        for setting in NOT_PRINTED[name]:
            assert bool(re.search(rf"{setting}\b", rows)) == bool(re.search(rf"{setting}\b", extended)), claim


def test_each_order_of_a_paper_that_fails_has_a_suspected_reason():
    for record in RECORDS.values():
        failed = [claim for claim in record["claims"] if verdict(claim, record).outcome == "fails"]
        for claim in failed if record["budget"] else ():
            assert reason_of(record["name"], claim["better"], claim["worse"])


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: f"{reason.table}-{reason.rows[0]}")
def test_a_suspicion_names_rows_and_an_experiment_that_are_there(reason):
    assert {*reason.rows} <= {START, UNTRAINED, *(row.name for row in TABLES[reason.table].rows)}
    assert reason.experiment is None or any(
        reason.answered_by(claim.better, claim.worse, metric)
        for claim in TABLES[reason.experiment].claims
        for metric in claim.metrics
    )


def test_a_page_shows_what_the_experiment_says_of_an_order_that_fails():
    (reason,) = (one for one in REASONS if one.table == "mao_terms")
    assert f"not run yet: `make table TABLE={reason.experiment}`" in page.page(RECORDS["mao_terms"])
    experiment = {**RECORDS["mao_terms"], "name": reason.experiment, "title": "The experiment"}
    written = page.page(RECORDS["mao_terms"], [experiment])
    assert f"[The experiment]({reason.experiment}.md). AMS + FD, beta 1 > AMS, Tatoeba, 1,000: +0.0001" in written


def record_of(*values, text="a", stored="a"):
    data = {"prepared": stored, "train/corpus": text}
    return {"rows": [{"name": "one", "values": {METRIC: list(values)}}], "run": {"data": data}}


@pytest.mark.parametrize(
    ("anew", "words"),
    [
        (record_of(0.5, 0.52), []),
        (record_of(0.51, 0.515), []),
        (record_of(0.8, 0.8), ["0.8000 is not between"]),
        (record_of(0.5, 0.52, text="b"), ["the text is not the same"]),
        (record_of(0.5, 0.52, stored="b"), []),
        ({**record_of(), "rows": []}, ["only one of the two has the rows one"]),
    ],
)
def test_a_table_is_reproduced_if_its_means_are_within_the_seeds(anew, words):
    problems = disagreements(anew, record_of(0.5, 0.52))
    assert len(problems) == len(words)
    assert all(word in line for word, line in zip(words, problems, strict=True))


def test_a_density_is_that_of_the_values_whose_percentiles_are_kept():
    values = np.random.default_rng(0).normal(0.2, 0.05, 200_000)
    places, densities = density(np.percentile(values, SHARES).tolist())
    assert densities == pytest.approx(norm.pdf(places, 0.2, 0.05), rel=0.09)


def test_rows_that_differ_in_dimensions_alone_have_a_picture_of_their_scores(tmp_path):
    assert {name for name, record in RECORDS.items() if dims_of(record)} == RECORDS.keys() & {
        "mao_dims",
        "mao_dims_192",
    }
    page.write(RECORDS["mao_dims"], tmp_path)
    picture = (tmp_path / page.PAGES / "mao_dims.svg").read_bytes()
    assert picture == (ROOT / page.PAGES / "mao_dims.svg").read_bytes()
    for words in ("dimensions", "Tatoeba, 1,000", *(str(dim) for dim in DIMS)):
        assert f">{words}</text>" in picture.decode()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["co", "co_filter"])
def test_the_similarities_of_batches_that_are_made_again_are_those_of_the_training(tiny_file, tmp_path, variant):
    words = ["method=laser3_co", f"config={{variant: {variant}, queue: 100}}", "parameters={}"]
    sweep = read_sweep(tiny_file, assignments=[*words, "student.projection=teacher"])
    trial = with_length(make_trial(sweep, 0, {}), COUNTED * sweep.training.global_batch)
    prepared = prepare(sweep, tmp_path)
    similarities = target_similarities(trial, prepared)
    assert len(similarities) == COUNTED * sweep.training.global_batch
    for batch, part in zip(
        first_batches(trial, prepared, torch.device("cpu")), np.split(similarities, COUNTED), strict=True
    ):
        assert float(batch.step()["target_similarity"]) == pytest.approx(part.mean(), rel=1e-4)
    assert percentiles_of(trial, prepared)[49] == pytest.approx(np.median(similarities), abs=1e-5)


FIGURES = Judged(better=0.8, worse=0.6, differences=(0.2, 0.21, 0.19), sentence_error=0.01, untrained=0.1)


@pytest.mark.parametrize(
    ("change", "said", "why"),
    [
        ({}, "holds", "above zero"),
        ({"differences": (-0.2, -0.21, -0.19)}, "fails", "below zero"),
        ({"differences": (-0.2, 0.3, 0.1)}, "undecided", "seeds differ"),
        ({"sentence_error": 0.2}, "undecided", "test set is too small"),
        ({"untrained": 0.9}, "undecided", "untrained"),
        ({"untrained": None, "better": 0.1, "worse": 0.2}, "holds", "above zero"),
        ({"sentence_error": None}, "undecided", "not known"),
        ({"smaller_is_better": True, "untrained": 0.9}, "fails", "above zero"),
        ({"searched": (0.1, 0.05)}, "holds", "above zero"),
        ({"searched": (0.1, -0.05)}, "undecided", "at equal rates"),
        ({"searched": (-0.1, -0.05), "smaller_is_better": True, "untrained": 0.9}, "undecided", "at equal rates"),
        ({"unchecked": True}, "holds", "above zero; no dev set of this kind checks the unequal learning rates"),
        ({"kind": "level", "margin": 0.3}, "holds", "within 0.3"),
        ({"kind": "level", "margin": 0.3, "unchecked": True}, "holds", "within 0.3 of zero; no dev set"),
        ({"kind": "level", "margin": 0.1}, "fails", "more than 0.1"),
        ({"kind": "level", "margin": 0.2}, "undecided", "0.2"),
    ],
)
def test_a_verdict_follows_from_seeds_and_sentences(change, said, why):
    result = judge(replace(FIGURES, **change))
    assert result.outcome == said
    assert why in result.why


@pytest.mark.parametrize("name", RECORDS)
def test_a_verdict_says_if_no_dev_set_checks_unequal_learning_rates(name):
    record = RECORDS[name]
    rates = {row["name"]: row["learning_rate"] for row in record["rows"] if len(row["searched"]) > 1}
    objective = record["run"]["objective"].rpartition("/")[2]
    written = page.page(record)
    for claim in record["claims"]:
        better, worse = (rates.get(claim[side]) for side in ("better", "worse"))
        another_kind = claim["metric"].rpartition("/")[2] != objective
        result = verdict(claim, record)
        unchecked = result.outcome != "undecided" and None not in (better, worse) and better != worse and another_kind
        assert (UNCHECKED in result.why) == unchecked, claim
        assert f"| **{result.outcome}** | {result.why} |" in written


def task(kind, rows, **more):
    left = [f"{kind} {row}" for row in range(rows)]
    return TextTask(name="set", subset="fra-eng", kind=kind, left=left, right=left, **more)


def outcomes(metric, forward, backward):
    return Scored({}, {f"test/set/fra-eng/{metric}": {"forward": forward.tolist(), "backward": backward.tolist()}})


def test_the_sampling_error_of_shares_is_that_of_paired_differences():
    random = np.random.default_rng(0)
    right = random.random((2, 2, 3, 400)) < 0.5  # row, direction, seed, sentence
    rows = [[outcomes("accuracy", a, b) for a, b in zip(row[0], row[1], strict=True)] for row in right]
    difference = right[0].mean(axis=(0, 1)) - 2 * right[1].mean(axis=(0, 1))
    error = sampling_error("test/set/accuracy", [task("bitext", 400)], *rows, times=2)
    assert error == pytest.approx(difference.std(ddof=1) / 20)


def test_equal_rows_have_no_sampling_error_in_a_correlation():
    grades = np.linspace(0, 5, 60)
    noise = np.random.default_rng(1).normal(size=60)
    good, bad = (
        [Scored({}, {"test/set/fra-eng/spearman": {"cosine": (grades + by * noise).tolist()}})] for by in (0.5, 5)
    )
    tasks = [task("sts", 60, scores=grades.tolist())]
    assert sampling_error("test/set/spearman", tasks, good, good) == 0
    assert 0.03 < sampling_error("test/set/spearman", tasks, good, bad) < 0.3


def test_the_index_of_resampled_clusters_is_scikit_learns_on_all_sentences():
    random = np.random.default_rng(2)
    labels = [str(topic) for topic in random.integers(0, 5, 200)]
    clusters = {str(seed): random.integers(0, 5, 200).tolist() for seed in (0, 1)}
    clusters["1"][:100] = [int(label) for label in labels[:100]]
    expected = statistics.fmean(adjusted_rand_score(labels, clustering) for clustering in clusters.values())
    assert ari_of(labels, clusters)(np.ones((1, 200)))[0] == pytest.approx(expected)
    tasks = [replace(task("clustering", 200), labels=tuple(labels))]
    good, bad = (
        [Scored({"test/set/ari": 0.1}, {"test/set/fra-eng/ari": {"0": clusters[seed]}})] for seed in ("1", "0")
    )
    assert sampling_error("test/set/ari", tasks, good, good) == 0
    assert 0.01 < sampling_error("test/set/ari", tasks, good, bad) < 0.1
    assert sampling_error("test/set/ari", tasks, good, [Scored({"test/set/ari": 0.1}, {})]) is None


@pytest.mark.parametrize(
    ("metric", "ways"),
    [
        ("xsim_error", ("forward", "backward")),
        ("xsim_error_forward", ("forward",)),
        ("accuracy_backward", ("backward",)),
    ],
)
def test_the_sampling_error_of_an_xsim_error_is_that_of_paired_differences(metric, ways):
    random = np.random.default_rng(3)
    better = random.random((2, 400)) < 0.3  # direction, sentence
    worse = better | (random.random((2, 400)) < 0.1)
    kind = metric.removesuffix(f"_{ways[-1]}") if len(ways) == 1 else metric
    rows = [[outcomes(kind, *row)] for row in (better, worse)]
    chosen = [("forward", "backward").index(way) for way in ways]
    difference = better[chosen].mean(axis=0) - worse[chosen].mean(axis=0)
    error = sampling_error(f"test/set/{metric}", [task("bitext", 400)], *rows)
    assert error == pytest.approx(difference.std(ddof=1) / 20)
    independent = math.hypot(*(row[chosen].mean(axis=0).std(ddof=1) / 20 for row in (better, worse)))
    assert error < 0.7 * independent


def test_the_sampling_error_of_scores_without_outcomes_is_not_known():
    rows = [[Scored({"test/set/xsim_error": value}, {})] for value in (0.5, 0.2)]
    assert sampling_error("test/set/xsim_error", [task("bitext", 100)], *rows) is None


@pytest.fixture(scope="module")
def promoted(tmp_path_factory):
    """The folder of a registered model: the bundled teacher, or a static model as narrow as the reduced teacher."""
    narrow = static_model(tmp_path_factory.mktemp("narrow"), dim=128)
    return lambda name: str(narrow if "reduced" in name else teacher_folder(Teacher()))


@pytest.mark.parametrize("name", TABLES)
def test_each_sweep_of_a_table_can_be_read_and_has_a_trial_for_each_point(name, promoted):
    table = TABLES[name]
    for file, words in planned(replace(table, start=None)):
        started = [word for word in words if "start: models:" not in word]
        untrained = [re.sub(r'embeddings_from: "models:[^"]*", ', "", word) for word in started]
        sweep = read_sweep(file, assignments=untrained, fetch=promoted)
        assert sweep.budget.trials == len(sweep.sampler.points)
        assert sweep.training.pairs > 0
    sets = {f"test/{task.name}" for task in sweep.data.test}
    assert {"/".join(column.metric.split("/")[:2]) for column in table.columns} <= sets


def test_rows_share_sweeps_unless_they_change_what_is_no_setting(tiny_file):
    rows = (*SMALL.rows, Row(name="mse", changes=("method=mse_distillation",)))
    table = replace(SMALL, sweep=str(tiny_file), rows=rows)
    sweeps = [read_sweep(file, assignments=words) for file, words in planned(table)]
    assert [(sweep.name, sweep.method, sweep.budget.trials) for sweep in sweeps] == [
        ("small_rates_0", "soft_contrastive", 4),
        ("small_seeds_0", "soft_contrastive", 4),
        ("small_rates_1", "mse_distillation", 2),
        ("small_seeds_1", "mse_distillation", 2),
    ]


def test_a_claim_names_rows_that_are_there():
    with pytest.raises(ValueError, match="absent"):
        replace(SMALL, claims=(Claim(better="soft", worse="absent", metrics=(METRIC,), paper=""),))


@pytest.mark.slow
def test_the_cpu_seconds_of_children_count_and_add_up(tmp_path):
    busy = "import time\nwhile time.process_time() < 2.5: pass"
    for least in (1.0, 2.0):
        with CpuSeconds(tmp_path / "cpu.json") as cpu:
            subprocess.run([sys.executable, "-c", busy], check=True)
        assert cpu.total() >= least


def cluster_file(folder, storage):
    values = {"version": 1, "name": "here", "storage": str(folder / storage), "worker_groups": 1}
    file = folder / f"{storage}.yaml"
    file.write_text(yaml.safe_dump({**values, "mlflow": f"sqlite:///{folder}/{storage}.db"}))
    return str(file)


@pytest.fixture
def place(with_stores, tmp_path, monkeypatch):
    """A cluster file whose storage has no sweep yet."""
    monkeypatch.chdir(tmp_path)
    with_stores(tmp_path / "home")
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path / "home"))
    return cluster_file(tmp_path, "home")


@pytest.mark.long
def test_a_small_table_runs_and_becomes_a_page(
    ray_cluster, scoring_process, tiny_file, place, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("benchmarks.tables.sealed.FreshScorer", lambda: nullcontext(scoring_process()))
    monkeypatch.setattr("benchmarks.tables.sweeps.FURTHER", 1)  # one sweep less
    table = replace(SMALL, sweep=str(tiny_file))
    show_plan(table, place)
    assert "small_seeds_0: 4 trials of 640 pairs" in capsys.readouterr().out
    record = run(table, place)
    written = page.write(record, tmp_path / "site").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "site" / page.RECORDS / "small.json").read_text()) == json.loads(json.dumps(record))
    assert written == page.page(record)
    rows = {row["name"]: row for row in record["rows"]}
    assert set(rows) == {"hard", "soft"}
    assert rows["hard"]["sweep"] == rows["soft"]["sweep"]
    assert all(list(row["searched"])[:2] == ["0.001", "0.003"] for row in rows.values())
    assert all(len(row["searched"]) == 3 for row in rows.values()), "the better of two is an edge"
    for row in rows.values():
        best = max(row["searched"], key=lambda rate: row["searched"][rate] or 0.0)
        assert float(best) == row["learning_rate"]
        assert f"{statistics.fmean(row['values'][METRIC]):.4f} ±" in written
    assert list(rows["soft"]["logged"]) == ["train/label_entropy", PAIRS, MEGABYTES]
    assert rows["soft"]["logged"][PAIRS] == [640, 640]
    assert 0.01 < rows["soft"]["logged"][MEGABYTES][0] < 10
    (use,) = record["uses"]
    best = max(rows, key=lambda name: sum(rows[name]["values"][METRIC]))
    assert (use["best"], [other["worse"] for other in use["others"]]) == (best, [name for name in rows if name != best])
    assert f"| find everyday sentences | everyday | **{best}** |" in written
    (claim,) = record["claims"]
    soft, hard = (rows[name]["values"][METRIC] for name in ("soft", "hard"))
    assert claim["differences"] == pytest.approx([a - b for a, b in zip(soft, hard, strict=True)], abs=2e-6)
    assert verdict(claim, record).outcome in written
    opened = (tmp_path / "home" / "openings.jsonl").read_text().splitlines()
    assert len(opened) == 2 * 2 + 1
    again = run(table, place)
    assert again | {"run": None} == record | {"run": None}
    assert again["run"]["cpu_seconds"] >= record["run"]["cpu_seconds"]
    assert len((tmp_path / "home" / "openings.jsonl").read_text().splitlines()) == len(opened)


@pytest.mark.long
def test_a_table_that_is_trained_again_from_scratch_says_the_same(
    ray_cluster, scoring_process, tiny_file, place, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("benchmarks.tables.sealed.FreshScorer", lambda: nullcontext(scoring_process()))
    table = replace(SMALL, sweep=str(tiny_file))
    page.write(run(table, place), tmp_path / "site")
    check(table, cluster_file(tmp_path, "fresh"), tmp_path / "site")
    assert "small: every score is within the kept record's seeds" in capsys.readouterr().out
    opened = [(tmp_path / storage / "openings.jsonl").read_text().splitlines() for storage in ("home", "fresh")]
    assert len(opened[0]) == len(opened[1]) == 2 * 2 + 1


def test_a_list_of_stop_words_is_read_from_where_the_table_writes_it(tmp_path, monkeypatch):
    table = TABLES["chen_stop_words"]
    table.text(tmp_path, tmp_path / "made")
    monkeypatch.setenv("BABELTUNE_MADE", str(tmp_path / "made"))
    (changes,) = (row.changes for row in table.rows if row.name == "a list")
    words = read_sweep(table.sweep, assignments=list(changes)).data.words
    ((language, rows),) = stop_lists(words, tmp_path, 1 << 20)
    assert language == "eng"
    assert {"the", "and", "of"} <= set(rows.columns["eng"])


def test_the_printed_thresholds_are_those_of_figure_4_and_its_peak_is_best():
    table = TABLES["tan_sigma_printed"]
    assert sorted(row.settings["sigma"] for row in table.rows) == [0.5, 0.7, 0.9, 1.0]
    assert {claim.better for claim in table.claims} == {"CO-Filter, sigma 0.9"}
    assert len(table.claims) == 3


def test_a_translator_learns_the_words_of_its_pairs():
    words = {"cat": "paka", "dog": "mbwa", "water": "maji", "house": "nyumba", "tree": "mti"}
    draw = random.Random(0)
    english = [draw.sample(list(words), 3) for _ in range(60)]
    pairs = [(" ".join(words[word] for word in reversed(one)), " ".join(one)) for one in english]
    translator = back_translation.train(pairs)
    for word, expected in words.items():
        choices, weights = translator.words[word]
        assert choices[np.argmax(weights)] == expected
        assert sum(weights) == pytest.approx(1)
    translated = [translator.translate("The cat saw water", draw) for _ in range(20)]
    assert statistics.mode(translated) == "The paka saw maji"


def test_translations_are_written_once_and_are_the_same_twice(tmp_path, monkeypatch):
    data = tmp_path / "data"
    texts = {"pairs": [("maji safi", "clean water"), ("maji", "water")], "wmt_news/deu-eng": [("x", "water")]}
    for name, rows in texts.items():
        file = data / f"{name}.tsv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "id\tother\teng\n" + "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(rows))
        file.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(back_translation, "NEWS", ("deu",))
    monkeypatch.setattr(back_translation, "PAIRS", {"swh": ("pairs.tsv.gz",)})
    monkeypatch.setattr(back_translation, "SENTENCES", 1)
    for folder in ("one", "two"):
        back_translation.write_translations(data, tmp_path / folder)
    written = [(tmp_path / folder / "swh-eng.tsv").read_text(encoding="utf-8") for folder in ("one", "two")]
    assert written[0] == written[1]
    assert written[0].startswith("id\tswh\teng\n0\t")
    (tmp_path / "one" / "swh-eng.tsv").write_text("kept")
    back_translation.write_translations(data, tmp_path / "one")
    assert (tmp_path / "one" / "swh-eng.tsv").read_text() == "kept"


def test_rows_of_clean_pairs_leave_out_the_back_translated_ones_and_no_other():
    for row in TABLES["tan_bt"].rows:
        sweep = read_sweep(TABLES["tan_bt"].sweep, assignments=[one for one in row.changes if "start:" not in one])
        left_out = [source.name for source in sweep.data.train if not source.train]
        synthetic = [source.name for source in sweep.data.train if source.synthetic]
        assert left_out == ([] if row.name.endswith(", BT") else synthetic)


def test_a_further_search_of_some_rows_names_no_value_of_the_others():
    table = TABLES["li_depth"]
    rows = [row for row in table.rows if row.settings["depth"] in (0, 2)]
    points = search_points(rows, {row.name: (1e-3,) for row in rows})
    words = assignments(table, 0, rows, points, "rates_1")
    sweep = read_sweep(table.sweep, assignments=words, fetch=lambda _: str(teacher_folder(Teacher())))
    assert sweep.parameters["dropout"].when == {"depth": (2,)}
    assert sweep.budget.trials == len(rows)


def trained(row, rate, searched):
    fields = {"objective": "dev/x/accuracy", "searches": ("a",), "sweep": "b", "trials": (), "logged": {}}
    return Trained(row=row, rate=rate, searched=searched, **fields)


def test_dev_sets_must_show_that_a_row_is_so_many_times_above_another():
    searched = ({1.0: 0.3, 2.0: 0.5}, {1.0: 0.2, 2.0: None})
    rows = [trained(Row(name="a"), 2.0, searched[0]), trained(Row(name="b"), 1.0, searched[1])]
    claim = Claim(better="a", worse="b", metrics=("test/y/accuracy",), paper="", times=2.0)
    assert at_equal_rates(claim, "test/y/accuracy", rows) == [pytest.approx(-0.1)]
    assert at_equal_rates(claim, "test/y/spearman", rows) == [], "the dev sets have none of this kind"


def test_a_row_that_is_about_its_learning_rate_is_trained_at_no_other():
    (row,) = (row for row in TABLES["park_rate"].rows if row.rate is not None)
    printed = [words for _, words in planned(TABLES["park_rate"]) if any("printed" in word for word in words)]
    assert len(printed) == 2, "its search and its seeds"
    for words in printed:
        assert f'parameters.training.learning_rate={{"choice": [{row.rate}]}}' in words
    other = replace(row, name="searched", rate=None)
    rows = [trained(one, rate, {1e-3: 0.3, 5e-3: 0.1}) for one, rate in ((other, 1e-3), (row, 5e-3))]
    (claim,) = TABLES["park_rate"].claims
    assert at_equal_rates(claim, "test/x/accuracy", rows) == [], "the rate is what differs"


@pytest.mark.parametrize(
    ("searched", "sign", "following"),
    [
        ({1e-4: 0.1, 3e-4: 0.3, 1e-3: 0.2}, 1, []),
        ({1e-4: 0.1, 3e-4: 0.2, 1e-3: 0.3}, 1, [3e-3]),
        ({1e-4: 0.1, 3e-4: 0.2, 1e-3: 0.3}, -1, [3e-5]),
        ({1e-4: None, 3e-4: 0.2, 1e-3: 0.1}, 1, []),
        ({1e-3: 0.1}, 1, []),
    ],
)
def test_the_search_goes_on_beyond_an_edge(searched, sign, following):
    assert next_rate(searched, sign) == pytest.approx(following)
