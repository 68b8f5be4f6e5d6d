"""`babeltune plan`: a summary that fits a screen, with time, memory, and what the dev set can tell apart."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from babeltune.apps.sweep_plan import Z95, about_disk, detectable, machine_of
from babeltune.cli.plan_page import show_plan
from babeltune.errors import SpecError
from babeltune.planning.calibration import GROWTH, MOST_ON_A_GPU, PROCESS_BYTES, Machine, Measured, estimate, gpu_share
from babeltune.planning.plan import CorpusSize, describe, make_plan
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster
from babeltune.training.compute import SavedBytes

MACHINE = Machine(groups=2, workers=1, threads=1, memory_bytes=8 * 2**30)
MEASURED = Measured(
    pair_s=0.001, sentence_s=0.01, teacher_sentence_s=0.02, worker_bytes=2**30,
    saved=SavedBytes(weights=100, optimizer=200), text_bytes=10.0, vector_bytes=40.0,
)  # fmt: skip


def plan_of(sweep, **more):
    """A plan of plausible counts."""
    counted = CorpusSize(
        counts={"natural": {"rows": 300, "pairs": 1200}},
        pairs={f"eng-l{number:02d}": 1000 + number for number in range(40)},
        dev={f"everyday/l{number:02d}-eng": 30 for number in range(40)} | {"sts/eng": 100},
        anchors=1700,
        teacher_sentences=3000,
    )
    report = describe(sweep, counted)
    return replace(report, **{"objective_rows": 60, "dev_texts": 500, **more})


def shown(report, sweep, machine, width, *, whole=False):
    console = Console(file=io.StringIO(), width=width)
    show_plan(report, sweep, machine, console, whole=whole)
    return console.file.getvalue()


def estimated(sweep, machine=MACHINE, measured=MEASURED):
    trial = make_trial(sweep, 0, default_params(sweep))
    return estimate(sweep, trial, measured, machine, dev_texts=500, teacher_sentences=3000, texts=5000)


@pytest.mark.parametrize("file", ["search_spaces/quickstart.yaml", "search_spaces/static.yaml", "tiny"])
def test_the_summary_fits_80_columns_and_24_lines(file, tiny_file):
    sweep = read_sweep(tiny_file if file == "tiny" else file, check=False)
    report = plan_of(sweep, estimate=estimated(sweep))
    lines = shown(report, sweep, MACHINE, 80).splitlines()
    assert len(lines) <= 24, "\n".join(lines)
    assert max(map(len, lines)) <= 80
    titles = [line.split()[0] for line in lines if line[:1].strip()]
    wanted = ["sweep", "method", "data", "dev", "detects", "sealed", "student", "teacher", "searched", "trials", "time"]
    assert titles[: len(wanted)] == wanted
    assert "and 36 more language pairs" in " ".join(" ".join(lines).split())


def test_lengths_are_those_of_the_default_trial(tiny_file):
    fixed = ["parameters.training.pairs={const: 5000}", "parameters.training.reports={const: 2}"]
    sweep = read_sweep(tiny_file, assignments=fixed)
    assert "each 5,000 pairs (" in (words := " ".join(shown(plan_of(sweep), sweep, None, 120).split()))
    assert "and 2 reports" in words
    searched = read_sweep(tiny_file, assignments=[*fixed, "parameters.training.pairs={choice: [5000, 9000]}"])
    assert "; by default " in " ".join(shown(plan_of(searched), searched, None, 120).split())


def test_the_models_that_are_scored_beside_the_trials_are_named(tiny_file, tmp_path):
    (tmp_path / "e5").mkdir()
    sweep = read_sweep(tiny_file, check=False)
    assert "beside untrained, teacher; `baselines` names" in " ".join(shown(plan_of(sweep), sweep, None, 120).split())
    bought = replace(sweep, baselines=(str(tmp_path / "e5"), "org/large@v1"))
    words = " ".join(shown(plan_of(bought), bought, None, 120).split())
    assert "beside untrained, teacher, e5, large (from the hub)" in words


def test_first_points_shorter_vectors_and_token_vectors_are_shown():
    more = ["training.matryoshka=[64, 128]", "student.token_vectors=teacher", "sampler.first_points=static"]
    sweep = read_sweep("search_spaces/static.yaml", assignments=more, check=False)
    words = " ".join(shown(plan_of(sweep), sweep, None, 120).split())
    assert ", token vectors of the teacher; its first 64, 128 dimensions are trained too" in words
    assert " after the points of portfolio 'static'; " in words


def test_encoders_side_by_side_are_shown_with_their_weights(tiny_file):
    sweep = read_sweep(tiny_file, assignments=["teacher.beside=[{model: other, weight: 2, center: true}]"], check=False)
    words = " ".join(shown(plan_of(sweep), sweep, None, 120).split())
    assert "bundled:all-MiniLM-L6-v2 (weight 1) + other (weight 2, centered) each encode 3,000 sentences, once" in words


def test_the_whole_file_comes_after_the_summary_only_if_asked_for(tiny_file):
    sweep = read_sweep(tiny_file)
    short, long = (shown(plan_of(sweep), sweep, None, 120, whole=whole) for whole in (False, True))
    assert "global_batch: 32" not in short
    assert "--yaml" in short
    assert "global_batch: 32" in long
    assert "rows 300 · pairs 1,200" in long
    assert long.startswith(short.rpartition("--yaml")[0].rstrip("\n"))


@pytest.mark.parametrize(
    ("taken", "share"), [(60, 1.0), (100, 1.0), (30, 0.5), (20, 0.3333), (15, 0.25), (3, 0.125), (0.1, 0.125)]
)
def test_the_share_of_a_gpu_has_room_for_the_trials_that_it_lets_in(taken, share):
    trial, gpu = int(taken * 2**30), 80 * 2**30
    assert gpu_share(trial, gpu) == share
    trials = int(1 / share)
    assert trials == 1 or trials * (trial * GROWTH + PROCESS_BYTES) <= gpu
    assert trials == MOST_ON_A_GPU or (trials + 1) * (trial * GROWTH + PROCESS_BYTES) > gpu, "one more has no room"


def test_a_plan_on_a_gpu_says_how_many_trials_share_it(tiny_file):
    sweep, machine = read_sweep(tiny_file), replace(MACHINE, device="cuda", gpu_bytes=80 * 2**30)
    found = estimated(sweep, machine, replace(MEASURED, worker_bytes=None, gpu_bytes=15 * 2**30))
    words = " ".join(shown(plan_of(sweep, estimate=found), sweep, machine, 120).split())
    assert "the first steps of a trial take 15.0 GB of a GPU's 80.0 GB: `gpus_per_worker: 0.25` in the" in words
    assert "lets 4 trials of one worker share it" in words


def test_time_and_memory_are_what_was_measured_times_what_there_is_to_do(tiny_file):
    sweep = read_sweep(tiny_file, assignments=["budget.trials=8", "training.pairs=10000", "training.reports=4"])
    found = estimated(sweep)
    assert found.teacher_s == pytest.approx(3000 * 0.02 / 2)
    assert found.trial_s == pytest.approx(10_000 * 0.001 + 4 * 500 * 0.01)
    assert found.search_s == pytest.approx(8 * 30 / 2)
    assert found.total_s == pytest.approx(30 + 120)
    assert found.memory_bytes == 2 * 2**30
    text = shown(plan_of(sweep, estimate=found), sweep, MACHINE, 200)
    assert "about 2 min on this machine: the teacher 30 s, then 8 × 30 s, 2 at a time" in text
    assert "about 2.0 GB for 2 workers; this machine has 8.0 GB" in text
    asha = replace(sweep, scheduler=replace(sweep.scheduler, kind="asha"))
    assert "at most about" in shown(plan_of(asha, estimate=found), asha, MACHINE, 200)


def test_the_disk_has_two_checkpoints_of_each_trial_that_keeps_its_own(tiny_file, tmp_path):
    def found(*assignments):
        sweep = read_sweep(tiny_file, assignments=["budget.trials=8", "training.reports=4", *assignments])
        return estimated(sweep), sweep

    whole, sweep = found()
    assert (whole.stores_bytes, whole.checkpoints_bytes, whole.model_bytes) == (3000 * 40 + 5000 * 10, 8 * 2 * 300, 100)
    assert whole.disk_bytes > whole.records_bytes > 8 * 4 * 100_000
    assert found("training.reports=1")[0].checkpoints_bytes == 8 * 300
    assert found("keep={trials: 3}")[0].checkpoints_bytes == 2 * (3 + 2) * 300, "two train while three are kept"
    assert found("keep={trials: 3, optimizer: false}")[0].checkpoints_bytes == 2 * (3 * 100 + 2 * 300)
    machine = replace(MACHINE, storage=tmp_path / "absent")
    report = plan_of(sweep, estimate=whole)
    assert f"are free in {machine.storage}" in shown(report, sweep, machine, 400)
    assert list(about_disk(report, machine)) == []
    full = replace(whole, checkpoints_bytes=2**60)
    assert "`babeltune clean` frees space" in next(about_disk(replace(report, estimate=full), machine))


def test_more_workers_share_a_trial_and_compute_fixes_its_length(tiny_file):
    sweep = read_sweep(tiny_file, assignments=["training.pairs=10000", "training.reports=4"])
    two = estimated(sweep, replace(MACHINE, groups=1, workers=2))
    assert two.trial_s == pytest.approx((10_000 * 0.001 + 4 * 500 * 0.01) / 2)
    fixed = replace(sweep, training=replace(sweep.training, compute=240.0))
    assert estimated(fixed).trial_s == pytest.approx(240 + 4 * 500 * 0.01)


@pytest.mark.parametrize(
    ("machine", "why", "words"),
    [
        (None, "", "not measured: the cluster is elsewhere"),
        (MACHINE, "", "not measured: --no-calibrate"),
        (MACHINE, "org/model is not on this machine yet", "not measured: org/model is not on this machine yet"),
    ],
)
def test_what_was_not_measured_is_said_with_its_reason(tiny_file, machine, why, words):
    sweep = read_sweep(tiny_file)
    assert words in shown(plan_of(sweep, not_measured=why), sweep, machine, 160)


def test_the_difference_that_a_dev_set_can_tell_shrinks_with_its_rows(tiny_file):
    sweep = read_sweep(tiny_file)
    small, large = (detectable(plan_of(sweep, objective_rows=rows), sweep) for rows in (100, 400))
    assert small == pytest.approx(2 * large)
    assert small == pytest.approx(Z95 * (2 * 0.7 * 0.3 / 100) ** 0.5)
    assert f"±{small:.4f}" in shown(plan_of(sweep, objective_rows=100), sweep, None, 160)
    assert detectable(plan_of(sweep, objective_rows=0), sweep) is None


def test_a_machine_has_as_many_groups_as_its_cores_and_the_trials_allow(tiny_file, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    sweep = read_sweep(tiny_file, assignments=["budget.trials=50"])
    assert machine_of(Cluster(), sweep).groups == 8
    assert machine_of(Cluster(cpus_per_worker=4.0), sweep).groups == 2
    assert machine_of(Cluster(worker_groups=3), sweep).groups == 3
    assert machine_of(Cluster(), read_sweep(tiny_file)).groups == 2, "the file has two trials"
    assert machine_of(Cluster(address="https://head:8265", storage="s3://b/x"), sweep) is None
    many = read_sweep(tiny_file, assignments=["budget.workers=9"])
    with pytest.raises(SpecError, match=r"a trial of 9 workers .* this machine has 8 CPUs; lower budget.workers"):
        machine_of(Cluster(), many)
    assert machine_of(Cluster(least_workers=1), many).groups == 1


def test_plan_times_the_default_trial_on_this_machine(command, tiny_file):
    plan = command.document("plan", tiny_file, "--samples", 0)
    assert plan["not_measured"] == ""
    assert 0 < plan["estimate"]["trial_s"] <= plan["estimate"]["total_s"]
    assert plan["estimate"]["memory_bytes"] is None or plan["estimate"]["memory_bytes"] > 600 * 2**20
    assert plan["objective_rows"] == 30, "translations of one another count once"
    assert plan["dev_texts"] > 60
    assert 0 < plan["detectable"] < 1


def test_plan_times_tokens_that_begin_with_the_teachers_vectors():
    sweep = read_sweep("search_spaces/encoder.yaml", assignments=["training.global_batch=64"])
    report = make_plan(sweep, samples=0, machine=MACHINE)
    assert report.not_measured == "", "a part of the corpus has not all of its tokens"
    assert report.estimate.trial_s > 0


def test_a_finished_sweep_takes_the_disk_that_plan_says(searched):
    """A trial whose best report is its last has one checkpoint, not two, and one of the four makes no report."""
    sweep, folder = searched
    storage = folder.path.parents[1]
    machine = machine_of(Cluster(storage=str(storage), worker_groups=1), sweep)
    found = make_plan(sweep, samples=0, machine=machine).estimate

    def taken(files):
        return sum(path.stat().st_size for path in files if path.is_file())

    saved = [*folder.path.glob("trials/*/checkpoints/0*")]
    checkpoints = sum(taken(place.rglob("*")) for place in saved)
    most = sweep.budget.trials * sweep.training.reports
    assert 0.8 < checkpoints / (found.checkpoints_bytes * len(saved) / most) < 1.25
    assert found.stores_bytes / 2 < taken((storage / "stores").rglob("*")) < 2 * found.stores_bytes
    records = taken([storage / "mlflow.db", folder.path / "results.jsonl", *folder.path.glob("trials/*/reports.jsonl")])
    assert found.records_bytes / 2 < records < found.records_bytes
    assert taken(storage.rglob("*")) < found.disk_bytes
