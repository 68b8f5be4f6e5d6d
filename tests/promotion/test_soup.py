"""Averages of trials' checkpoints, and the folders behind starts: a trial of the storage, a registered model."""

import json
from dataclasses import replace
from functools import partial

import mlflow
import pytest
import torch

from babeltune.data.prepared import write_prepared
from babeltune.data.starts import PIN, digest_of_start, keep_start
from babeltune.errors import PromotionError, SpecError, SweepError, UnknownNameError
from babeltune.files import write_json
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import MEMBERS, find_candidate
from babeltune.promotion.export import export_trial
from babeltune.promotion.model_names import start_folder
from babeltune.promotion.promote import decided, promote
from babeltune.promotion.soup import averaged, best_or_average, members_of
from babeltune.promotion.verdict import champion_for, is_same, start_of
from babeltune.schema.records import Report
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, Ledger
from babeltune.train import Printer
from babeltune.training.build import make_method, make_student
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint, save_checkpoint
from babeltune.training.dev_evaluation import dev_scores
from babeltune.training.trainer import TrialTrainer
from conftest import cluster_at
from made_sweeps import log_trial

pytestmark = pytest.mark.usefixtures("one_thread", "offline")

CPU = torch.device("cpu")
SHORT = ["parameters={}", "training.pairs=19200", "training.reports=1", "training.embedding_learning_rate=5"]
STATIC = "student={kind: static, width: 32, projection: teacher, vocabulary: 500, max_tokens: 32}"
OPEN = "data.test=[]"


def write_trial(folder, sweep, prepared, number, params, change):
    """A finished trial whose checkpoint holds its start's weights, changed; returns its trial."""
    trial, place = make_trial(sweep, number, params), folder.trial(number)
    place.mkdir(parents=True)
    encoder = make_student(trial, prepared)
    method = make_method(trial, prepared, encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(change(parameter))
    scores = dev_scores(encoder, method, trial, prepared, ProcessGroup(), CPU)
    tensors = {"student": dict(encoder.state_dict())}
    if state := dict(method.state_dict()):
        tensors["method"] = state
    save_checkpoint(checkpoint_folder(place, 1), tensors, {})
    write_json(place / "trial.json", trial)
    report = Report(index=1, step=1, pairs=1, seconds=1, metrics=scores, last=True)
    log_trial(folder, number, params or {}, [report], "finished")
    return trial


def finished(storage, sweep, changes, params=None):
    """A finished sweep of a storage, with a trial for each of these changes of its start's weights."""
    folder = SweepFolder(storage / "sweeps" / sweep_id(sweep))
    folder.path.mkdir(parents=True)
    prepared = prepare(sweep, storage)
    folder.write("sweep.json", sweep)
    write_prepared(prepared, folder.prepared)
    for number, change in enumerate(changes):
        write_trial(folder, sweep, prepared, number, (params or {}).get(number, {}), change)
    folder.set_state("finished")
    return folder


def same(weights):
    return weights


def noise(seed, sign=1):
    """Adds noise as long as the weights' own spread, the same for equal seeds."""

    def change(weights):
        drawn = torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed))
        spread = weights.std() if weights.numel() > 1 else 0.0
        return weights + sign * 2 * spread * drawn

    return change


@pytest.fixture(scope="module")
def base(tiny_file, tmp_path_factory):
    """A storage, and the exported model of a trial that was trained for some steps."""
    storage = tmp_path_factory.mktemp("soups")
    sweep = read_sweep(tiny_file, assignments=[*SHORT, STATIC])
    prepared = prepare(sweep, storage)
    run = TrialTrainer(make_trial(sweep, 0, {}), prepared, storage / "run", Printer([]), ProcessGroup(), CPU)
    run.train()
    export_trial(sweep, run.trial, prepared, run.train_step.encoder, run.train_step.method, storage / "base")
    return storage, storage / "base"


def started(tiny_file, start, *more):
    return read_sweep(tiny_file, assignments=[*SHORT, f"student={{kind: static, start: {start}}}", OPEN, *more])


@pytest.fixture(scope="module")
def noisy(base, tiny_file):
    """A sweep of four trials: the start plus and minus two noises, whose average is the start itself."""
    storage, start = base
    sweep = started(tiny_file, start, "name=noisy")
    return finished(storage, sweep, [noise(1), noise(1, -1), noise(2), noise(2, -1)])


def test_the_average_is_the_mean_of_the_checkpoints_and_is_taken_because_dev_says_so(noisy):
    members = members_of(noisy, 4)
    values = [member.report.metrics["dev/everyday/accuracy"] for member in members]
    assert values == sorted(values, reverse=True)
    average = averaged(members)["student"]
    loaded = [load_checkpoint(checkpoint_folder(noisy.trial(n), 1))[0]["student"] for n in range(4)]
    for name, tensor in average.items():
        torch.testing.assert_close(tensor, sum(state[name] for state in loaded) / 4)
    candidate, why = best_or_average(members)
    score = candidate.report.metrics["dev/everyday/accuracy"]
    assert score > values[0]
    assert set(candidate.members) == {"t0000/1", "t0001/1", "t0002/1", "t0003/1"}
    assert f"is taken: its dev/everyday/accuracy is {score:.4f}, and {values[0]:.4f} of {members[0].name} alone" in why


def test_an_average_that_is_no_better_is_not_taken(base, tiny_file):
    storage, start = base
    folder = finished(
        storage,
        started(tiny_file, start, "name=spoilt"),
        [same, lambda weights: noise(3)(0 * weights + noise(4)(weights))],
    )
    candidate, why = best_or_average(members_of(folder, 2))
    assert (candidate.name, candidate.members, candidate.weights) == ("t0000", (), None)
    assert why.startswith("the average of t0000, t0001 is not taken: its dev/everyday/accuracy is ")


def test_a_promoted_average_names_its_members_and_its_start(noisy, base, one_scoring_process):
    cluster = cluster_at(base[0])
    mlflow.set_tracking_uri(cluster.mlflow)
    run = mlflow.MlflowClient().create_run(mlflow.MlflowClient().create_experiment("noisy"))
    candidate, _ = best_or_average(members_of(noisy, 4))
    decision = decided(candidate, cluster, ("champion",), run_id=run.info.run_id)
    assert decision.verdict == "promote", decision.reasons
    assert decision.members == candidate.members
    card = (noisy.path.parents[1] / "models" / noisy.id).glob("*/README.md")
    text = next(iter(card)).read_text(encoding="utf-8")
    assert f"the average of the checkpoints (trial/report) `{'`, `'.join(candidate.members)}`" in text
    assert f"began with the weights and the tokenizer of `{candidate.trial.student.start}`" in text
    champion = champion_for(candidate, cluster, "champion")
    assert champion.version.tags[MEMBERS] == " ".join(candidate.members)
    assert champion.version.tags["babeltune.start"] == candidate.trial.student.start
    assert is_same(champion.version, candidate)
    single = find_candidate(f"{noisy.id}/{candidate.name}", base[0])
    assert not is_same(champion.version, single), "the best single checkpoint is another model"
    again = decided(candidate, cluster, ("champion",), run_id=run.info.run_id)
    assert again.verdict == "tie"
    # and the promoted model is a start, by its alias
    name = "models:/noisy@champion"
    folder = start_folder(name, cluster)
    start = f"{name}{PIN}{digest_of_start(keep_start(base[0], f'{name}{PIN}{digest_of_start(folder_path(folder))}'))}"
    assert start_folder(start, cluster).endswith(start.partition(PIN)[2])
    begun = replace(single, trial=replace(single.trial, student=replace(single.trial.student, start=start)))
    assert start_of(begun, cluster) == champion.version, "what it was trained on is known"
    words = r"has no models:/noisy@champoin; there: models:/noisy@champion; did you"
    with pytest.raises(UnknownNameError, match=words):
        start_folder("models:/noisy@champoin", cluster)


def folder_path(folder):
    from pathlib import Path

    return Path(folder)


def test_the_command_takes_the_average_and_says_why(noisy, base, tmp_path, command, one_scoring_process):
    cluster = cluster_at(base[0])
    decision = promote(noisy.id, cluster, alias="other", dry_run=True, soup=4)
    assert decision.verdict == "promote"
    assert len(decision.members) == 4
    assert decision.reasons[-1].startswith("the average of ")
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps({"storage": str(base[0]), "mlflow": cluster.mlflow}), encoding="utf-8")
    for arguments, words in (
        (["--soup", "1"], "--soup 1: an average needs at least 2 trials, and sweep"),
        (["--soup", "9"], "has 4 finished ones; ask for 2 to 4"),
        (["--soup", "2", "--prefer", "max sts"], "--prefer and --soup each choose what is promoted"),
    ):
        assert words in " ".join(command.refuses("promote", noisy.id, *arguments, "--cluster", file).split())
    with pytest.raises(SpecError, match=r"--soup chooses among the trials of a sweep, and .* is one trial"):
        promote(f"{noisy.id}/t0001", cluster, soup=2)


@pytest.mark.long
def test_trials_that_share_no_start_are_refused_in_one_line(base, tiny_file):
    storage, start = base
    seeds = {number: {"seed": number} for number in range(2)}
    began = r"--soup 2: t000\d \(seed \d\) and t000\d \(seed \d\) began with other weights \(student\..*student.seed"
    vectors = STATIC.replace("}", ", token_vectors: teacher, ngrams: 100}")
    for name, student in (("scratch", STATIC), ("vectors", vectors)):
        assignments = [*SHORT, student, OPEN, f"name={name}", "parameters={seed: {choice: [0, 1]}}"]
        with pytest.raises(PromotionError, match=began):
            members_of(finished(storage, read_sweep(tiny_file, assignments=assignments), [same] * 2, seeds), 2)
    one = [*assignments, "name=one_start", "student.seed=7"]
    assert len(members_of(finished(storage, read_sweep(tiny_file, assignments=one), [same] * 2, seeds), 2)) == 2
    scratch = finished(storage, read_sweep(tiny_file, assignments=[*SHORT, STATIC, OPEN, "name=alike"]), [same] * 2)
    assert len(members_of(scratch, 2)) == 2, "of one seed, both began with the same weights"
    widths = {0: {"student.width": 16}, 1: {"student.width": 32}}
    searched = read_sweep(
        tiny_file, assignments=[*SHORT, STATIC, OPEN, "name=widths", 'parameters={"student.width": {choice: [16, 32]}}']
    )
    words = r"student.width is \d\d in t000\d and \d\d in t000\d, and only checkpoints"
    with pytest.raises(PromotionError, match=words):
        members_of(finished(storage, searched, [same] * 2, widths), 2)
    trial = f"{scratch.id}/t0000"
    other = start_folder(trial, cluster_at(storage))
    choice = json.dumps([str(start), other])
    two = ["name=two", f'parameters={{"student.start": {{choice: {choice}}}}}', "student={kind: static}", OPEN]
    sweep = read_sweep(tiny_file, assignments=[*SHORT, *two])
    names = sweep.parameters["student.start"].choice
    folder = finished(storage, sweep, [same] * 2, {n: {"student.start": name} for n, name in enumerate(names)})
    with pytest.raises(PromotionError, match=r"student.start is '.*' in t000\d and '.*' in t000\d, and only") as caught:
        members_of(folder, 2)
    assert len(str(caught.value).splitlines()) == 1


def test_a_trial_of_the_storage_is_a_start_with_its_own_weights(noisy, base, tiny_file):
    storage, _ = base
    cluster = cluster_at(storage)
    name = f"{noisy.id}/t0002"
    student = f"student={{kind: static, start: {name}}}"
    sweep = read_sweep(tiny_file, assignments=[*SHORT, student], fetch=partial(start_folder, cluster=cluster))
    assert sweep.student.start.startswith(f"{name}{PIN}")
    trial, prepared = make_trial(sweep, 0, {}), prepare(sweep, storage)
    weights = load_checkpoint(checkpoint_folder(noisy.trial(2), 1))[0]["student"]
    assert torch.equal(make_student(trial, prepared).word_embeddings, weights["table.weight"])


def test_a_trial_that_is_unknown_or_has_no_checkpoint_is_one_line(noisy, base, tiny_file):
    cluster, empty, ledger = cluster_at(base[0]), noisy.trial(7), noisy.path / LEDGER
    before = ledger.read_bytes()
    trial = json.loads((noisy.trial(0) / "trial.json").read_text(encoding="utf-8"))
    empty.mkdir()
    write_json(empty / "trial.json", {**trial, "number": 7})
    Ledger(ledger).add("propose", 7, params={})
    try:
        fetch = partial(start_folder, cluster=cluster)
        for name, words in (
            (f"{noisy.id}/t0007", "t0007 has no checkpoint, and its state is"),
            (f"{noisy.id}/t0009", "has no trial 't0009'; trials: "),
            ("nosweep/t0001", "no sweep 'nosweep' in "),
            (
                "no/such/folder",
                "'no/such/folder' is no folder; give the folder of an exported model, models:/NAME@ALIAS",
            ),
        ):
            with pytest.raises(SpecError, match=r"student\.start: ") as caught:
                read_sweep(tiny_file, assignments=[f"student={{start: {name}}}"], fetch=fetch)
            assert words in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(SweepError):
            start_folder(f"{noisy.id}/t0007", cluster)
    finally:
        ledger.write_bytes(before)
        (empty / "trial.json").unlink()
        empty.rmdir()
