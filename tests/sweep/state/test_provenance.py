"""A sweep that goes on with another spec: what is taken, what is refused, and what accepting it records."""

import itertools
import json
import shutil
from dataclasses import replace

import mlflow
import pytest

from babeltune.errors import SweepError
from babeltune.files import plain
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.promotion.candidate import find_candidate
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.state.folder import SweepFolder, condition_of
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.lease import only_driver
from babeltune.sweep.state.progress import sweep_document
from babeltune.sweep.state.provenance import (
    Change,
    accepted_lines,
    check_text,
    check_unchanged,
    code_digest,
    code_of_sweeps,
    deciding_facts,
    differences,
    finish_accepting,
    spec_changes,
)
from babeltune.sweep.state.rebuild import mend
from kills import killed_at


@pytest.fixture
def babeltune(command, copied):
    """Runs a command on the copied sweep's storage: exit code, standard output, standard error."""
    _, folder, cluster = copied
    file = folder.path.parents[1] / "cluster.yaml"
    file.write_text(f"storage: {cluster.storage}\nworker_groups: 1\n", encoding="utf-8")
    return lambda *arguments: command(*arguments, "--cluster", file)


@pytest.fixture
def file(copied, tmp_path):
    """The sweep's own spec, as a file, with a trial more on one worker."""
    sweep, *_ = copied
    path = tmp_path / "spec.yaml"
    sweep = replace(sweep, budget=replace(sweep.budget, trials=5, workers=1))
    path.write_text(spec_yaml(sweep), encoding="utf-8")
    return path


def test_text_that_changed_is_refused_by_its_source_before_it_is_encoded(copied):
    _, folder, _ = copied
    digests = json.loads(folder.prepared.read_bytes())["digests"]
    source = next(iter(digests))
    check_text(folder, digests)
    with pytest.raises(SweepError, match=rf"(?s)other settings, code, packages or data:\n  data\.{source}: .*\nits"):
        check_text(folder, digests | {source: "0" * 64})
    folder.prepared.unlink()
    check_text(folder, digests | {source: "0" * 64})


def test_a_difference_names_its_key_path_and_both_values():
    before = {"training": {"pairs": 640, "clip": None}, "points": [], "seed": 1}
    after = {"training": {"pairs": 1280, "clip": None}, "points": [{"a": 1}], "seed": 1.0, "description": "new"}
    assert [str(change) for change in differences(before, after)] == [
        "description: absent → new",
        "points: [] → absent",
        "points.0.a: absent → 1",
        "training.pairs: 640 → 1280",
    ]
    assert [change.decides for change in differences(before, after)] == [False, True, True, True]
    assert str(Change("a", "x" * 99, None)) == f"a: {'x' * 59}… → null"


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_resume_takes_a_spec_and_what_is_accepted_stays_recorded(babeltune, copied, file):
    sweep, folder, cluster = copied
    pairs = sweep.training.pairs
    longer = ("resume", folder.id, "--spec", file, "--set", "training.pairs=640")
    with only_driver(folder):
        code, _, err = babeltune(*longer)
        assert code == 1
        assert "is running with the spec that it began with; `babeltune stop" in " ".join(err.split())
    code, _, err = babeltune(*longer)
    assert code == 1
    assert "taken:" not in err, "nothing was"
    assert f"\n  training.pairs: {pairs} → 640\n" in err
    assert "--accept-changes" in err
    assert folder.sweep().training.pairs == pairs, "a refused spec leaves the folder as it was"
    assert folder.accepted() == []
    code, out, err = babeltune(*longer, "--accept-changes", "--json")
    assert code == 0, err
    assert "taken: budget.trials: 4 → 5" in err
    assert json.loads(out)["sweep"] == folder.id, "the id is kept"
    assert [(e["changes"], e["begun"], e["unfinished"]) for e in json.loads(out)["accepted_changes"]] == [
        ([plain(Change("training.pairs", pairs, 640))], [0, 1, 2, 3], [])
    ]
    rows = {row.name: row for row in leaderboard(folder)}
    assert [rows[f"t000{number}"].condition for number in range(5)] == [1, 1, 1, 1, 2]
    assert (rows["t0000"].steps, rows["t0004"].steps) == (pairs // 32, 20)
    assert "teacher" in rows
    code, out, _ = babeltune("status", folder.id)
    assert "mixed conditions: 2 since" in out
    assert "accepted: training.pairs: 3840 → 640; 4 trials began before" in out
    client = mlflow.MlflowClient(cluster.mlflow)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    tags = {run.data.tags.get("babeltune.trial", "sweep"): run.data.tags for run in runs}
    assert tags["t0004"]["babeltune.condition"] == "2"
    assert "training.pairs" in tags["sweep"]["babeltune.accepted_changes"]
    old, new = (find_candidate(f"{folder.id}/{number}", folder.path.parents[1]).sweep for number in (0, 4))
    assert (old.training.pairs, new.training.pairs) == (pairs, 640)
    code, _, err = babeltune("submit", file)
    assert code == 1
    assert f"training.pairs: 640 → {pairs}" in err, "the first file is now another spec"
    code, out, err = babeltune("resume", folder.id, "--json")
    assert code == 0, err


def test_a_key_that_an_earlier_version_did_not_have_is_no_change(copied):
    sweep, folder, _ = copied
    spec = folder.read("sweep.json")
    del spec["data"]["sampling"]["least_margin"]
    folder.write("sweep.json", spec)
    assert spec_changes(folder, sweep) == []
    assert [change.key for change in spec_changes(folder, replace(sweep, description="x"))] == ["description"]


def test_a_trial_that_has_begun_keeps_its_settings_and_data(copied):
    sweep, folder, _ = copied
    begun, waiting = folder.trial(4), folder.trial(5)
    params = {"temperature": 0.1, "training.learning_rate": 3e-3}
    first = [assignment(sweep, folder, number, params) for number in (4, 5)]
    (begun / "checkpoints" / "000001").mkdir(parents=True)
    other = replace(sweep, training=replace(sweep.training, pairs=640))
    check_unchanged(folder, deciding_facts(), accept=True, sweep=other)
    folder.write("sweep.json", other)
    check_unchanged(folder, {"data": "of other text"}, accept=True)
    (entry,) = folder.accepted()
    assert [change["key"] for change in entry["changes"]] == ["training.pairs", "data"], "no trial began in between"
    assert entry["begun"] == [0, 1, 2, 3, 4]
    assert entry["unfinished"] == [4]
    assert any("; t0004 had not ended" in line for line in accepted_lines(folder))
    again = [assignment(other, folder, number, params) for number in (4, 5)]
    assert again[0].trial == first[0].trial
    assert again[0].prepared.endswith("conditions/1/prepared.json")
    assert again[1].trial["training"]["pairs"] == 640
    assert again[1].prepared == str(folder.prepared)
    assert waiting.exists()
    assert [condition_of(number, folder.accepted()) for number in (4, 5)] == [1, 2]
    assert folder.baselines() == {}, "the untrained student is another one"
    assert sweep_document(folder).accepted_changes == folder.accepted()


def test_changes_are_accepted_with_their_spec_or_not_at_all(searched, tmp_path):
    """Whoever is killed at it leaves the spec that was accepted to `resume`, whose driver finishes it first."""
    outcomes = []
    for number in itertools.count(1):
        sweep, folder = searched[0], SweepFolder(shutil.copytree(searched[1].path, tmp_path / str(number) / "sweep"))
        other = replace(sweep, training=replace(sweep.training, pairs=640))
        killed = killed_at(number, lambda: check_unchanged(folder, deciding_facts(), accept=True, sweep=other))  # noqa: B023
        resumed = folder.sweep()
        finish_accepting(folder)
        changes = [change["key"] for entry in folder.accepted() for change in entry["changes"]]
        if resumed == other:
            assert changes == ["training.pairs"]
            assert folder.read("sweep.json") == plain(other)
            assert folder.sweep_of(0) == sweep
        else:
            assert (changes, folder.sweep()) == ([], sweep)
        outcomes.append(resumed == other)
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert sum(outcomes) > 3


def test_a_line_of_accepted_changes_that_was_cut_off_accepts_nothing(copied):
    sweep, folder, _ = copied
    before = (folder.path / "results.jsonl").read_bytes()
    check_unchanged(
        folder, deciding_facts(), accept=True, sweep=replace(sweep, training=replace(sweep.training, pairs=640))
    )
    line = (folder.path / "results.jsonl").read_bytes().removeprefix(before)
    copy = SweepFolder(folder.path.with_name("copy-0123456789"))
    shutil.copytree(folder.path, copy.path)
    for name in ("sweep.json", "facts.json"):
        (copy.path / name).write_bytes(b"")
    (copy.path / "results.jsonl").write_bytes(before + line[:-9])
    mend(copy)
    assert (copy.sweep(), copy.accepted()) == (sweep, [])


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("objectives.0.metric=dev/sts/spearman", "objectives.0.metric: .*: a search takes it when it begins"),
        ("parameters.training.learning_rate.choice=[1e-3]", "parameters.training.learning_rate: a study cannot change"),
        ("parameters.temperature={float: [0.03, 0.2]}", "parameters.temperature: a study cannot change its kind"),
        ("sampler={kind: random}", "sampler.points.*: a search takes it when it begins"),
    ],
)
def test_what_a_study_cannot_take_is_refused_accepted_or_not(copied, file, assignment, reason):
    _, folder, _ = copied
    assignments = [assignment] + ["sampler.points=[]"] * assignment.startswith("parameters")
    sweep = read_sweep(file, assignments=assignments)
    for accept in (False, True):
        with pytest.raises(SweepError, match=reason) as caught:
            check_unchanged(folder, deciding_facts(), accept=accept, sweep=sweep)
        assert "submit it as a new sweep" in str(caught.value)
        assert "--accept-changes" not in str(caught.value), "it would not help"
    assert folder.accepted() == []


def test_a_range_may_change_and_a_resumed_trial_of_it_still_fits(copied, file):
    _, folder, _ = copied
    sweep = read_sweep(file, assignments=["parameters.temperature.log_float=[0.05, 0.3]"])
    assert sweep_id(sweep) != folder.id
    check_unchanged(folder, deciding_facts(), accept=True, sweep=sweep)
    assert folder.read("facts.json")["spec"] == sweep_id(sweep)


CODE = {
    "babeltune/sweep/driver/run.py": "from babeltune.data import (\n    texts,\n)\n",
    "babeltune/data/texts.py": "def read():\n    from babeltune.data.keys import key\n",
    **{f"babeltune/data/{name}.py": "" for name in ("__init__", "keys", "sheet_process")},
    "babeltune/apps/mine.py": "from babeltune.data.texts import read\n",
    "babeltune/cli/mine.py": "import babeltune.apps.mine\n",
    "babeltune_methods/paper.py": "import babeltune.method.loss\n",
    "babeltune/method/loss.py": "",
}


@pytest.mark.parametrize("file", CODE)
def test_a_sweep_is_asked_about_code_that_it_imports_and_no_other(tmp_path, file):
    for name, text in CODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = code_digest(tmp_path)
    (tmp_path / file).write_text(CODE[file] + "x = 1\n")
    assert (code_digest(tmp_path) == before) == (file in ("babeltune/apps/mine.py", "babeltune/cli/mine.py"))


def test_all_that_trains_decides_results_and_what_shows_or_mines_does_not():
    reached = code_of_sweeps()
    packages = {".".join(name.split(".")[:2]) for name in reached}
    assert not packages & {f"babeltune.{name}" for name in ("apps", "cli", "promotion", "remote", "sweep_report")}
    folders = ("data", "evaluation", "method", "models", "training", "sweep/search", "sweep/workers")
    files = {path for name in folders for path in (reached["babeltune"].parent / name).glob("*.py")}
    # of a promoted model, of a report, of `plan`, and of a checkpoint that becomes a folder
    alone = {"finetuning.py", "importance.py", "distinct_rows.py", "laser.py"}
    assert {path.name for path in files - set(reached.values())} == alone
