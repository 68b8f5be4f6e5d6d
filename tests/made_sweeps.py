"""Sweeps for tests of what is shown: written by the functions that a driver and its workers write with, without Ray."""

import json
import os
import shutil
from dataclasses import replace

from babeltune.data.prepared import write_prepared
from babeltune.files import write_json
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Report
from babeltune.sweep.state.folder import SweepFolder, read_of_trial
from babeltune.sweep.state.leaderboard import steps_in
from babeltune.sweep.state.log import LEDGER, Ledger, log_of
from babeltune.sweep.state.messages import ENDED, ENDS, TrialEnd
from babeltune.training.checkpoint import PROGRESS, checkpoint_folder, save_checkpoint, write_reports

METRIC = "dev/everyday/accuracy"


def make_sweep(storage, sweep, *, state="finished", when=0):
    """A sweep's folder under its own id, without trials."""
    folder = SweepFolder(storage / "sweeps" / sweep_id(sweep))
    folder.path.mkdir(parents=True)
    folder.write("sweep.json", sweep)
    folder.set_state(state)
    if when:
        os.utime(folder.path / "sweep.json", (when, when))
    return folder


def add_trial(folder, number, scores, state=None, reason="", **params):
    """A trial with a report for each score; the state None leaves it running."""
    sweep, place = folder.sweep(), folder.trial(number)
    place.mkdir(parents=True)
    write_json(place / "trial.json", make_trial(sweep, number, params))
    reports = []
    for index, score in enumerate(scores, 1):
        pairs = {"dev/everyday/fra-eng/accuracy": score + 0.1, "dev/everyday/kor-eng/accuracy": score - 0.1}
        metrics = {METRIC: score, **pairs, "dev/sts/eng/spearman": 1 - score, "dev/sts/spearman": 1 - score}
        last = state == "finished" and index == len(scores)
        counts = {"index": index, "step": 10 * index, "pairs": 320 * index, "seconds": 7.0 * index}
        reports.append(Report(**counts, metrics=metrics, last=last))
    write_json(place / PROGRESS, {"step": 10 * len(scores) + 5, "steps": 20, "loss": 1.2345})
    log_trial(folder, number, params, reports, state, reason)


def log_trial(folder, number, params, reports, state=None, reason=""):
    """The records of a trial as a driver and its worker write them; the state None leaves it running."""
    place, ledger = folder.trial(number), Ledger(folder.path / LEDGER)
    place.mkdir(parents=True, exist_ok=True)
    ledger.add("propose", number, params=params)
    ledger.add("start", number)
    write_reports(place, reports)
    for report in reports:
        ledger.add_report(number, report, [])
    if state is None:
        return
    kinds = {"failed": "refused", "pruned": "pruned", "stopped": "stopped"}
    end = TrialEnd(kinds.get(state, "finished"), text=reason)
    if state in ENDED:
        word = next(word for word, name in ENDS.items() if name == state)
        ledger.add_end(number, word, None, end, **steps_in(read_of_trial(place, PROGRESS) or {}))
    else:
        ledger.add("stop", number)


def states(folder):
    """The state of each trial by the ledger, in their order."""
    return [trial.state for _, trial in sorted(log_of(folder.path).trials.items())]


def rewrite_ledger(folder, change):
    """Replaces each line of the ledger by what `change` makes of it, and leaves out a line if that is None."""
    path = folder.path / LEDGER
    lines = [change(json.loads(line)) for line in path.read_bytes().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None), encoding="utf-8")


def whole_sweep(storage, file, stores):
    """A finished sweep `saved` of two trials with what was prepared, and a checkpoint of the better one, t0001."""
    import torch

    sweep = read_sweep(file, assignments=["name=saved"])
    shutil.copytree(stores, storage / "stores")
    folder = make_sweep(storage, sweep)
    write_prepared(prepare(sweep, storage), folder.prepared)
    folder.write("baselines.json", {"scores": {"untrained": {METRIC: 0.1}, "teacher": {METRIC: 0.5}}})
    add_trial(folder, 0, [0.3, 0.2], "finished", temperature=0.15)
    add_trial(folder, 1, [0.6, 0.4], "finished", temperature=0.05)
    save_checkpoint(checkpoint_folder(folder.trial(1), 1), {"student": {"w": torch.ones(5)}}, {})
    return folder


def renamed(sweep, name):
    """The sweep under another name."""
    return replace(sweep, name=name)
